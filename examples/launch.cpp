// Launch a kernel that kgen built, from C++ with the CUDA driver API and nothing else.
//
//     kgen package query-h8-b8 --arch sm_90a --format header
//     gcc -O2 -c kgen_cubins.c
//     g++ -O2 -std=c++17 -I. -I"$CUDA/include" examples/launch.cpp kgen_cubins.o -lcuda -o launch
//
// $CUDA holds cuda.h: a toolkit, or nvidia/cu13 of the Python package nvidia-cuda-runtime.
// It prints the kernel's shape and a hash of the query rows that it wrote.

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kgen_cubins.h"

namespace {

constexpr int kRows = 8, kHeads = 8, kPages = 4, kPage = 16, kRow = 576, kWidth = 2112;

void check(CUresult code, const char* call) {
    if (code == CUDA_SUCCESS) return;
    const char* text = nullptr;
    cuGetErrorString(code, &text);
    std::fprintf(stderr, "%s: %s\n", call, text ? text : "unknown error");
    std::exit(1);
}

#define CHECK(call) check(call, #call)

// Device memory with a copy of `host`; it lives as long as the process.
template <typename T>
void* to_device(const std::vector<T>& host) {
    CUdeviceptr memory = 0;
    CHECK(cuMemAlloc(&memory, host.size() * sizeof(T)));
    CHECK(cuMemcpyHtoD(memory, host.data(), host.size() * sizeof(T)));
    return reinterpret_cast<void*>(memory);
}

// BF16 values of both signs between 2^-8 and 1 in magnitude, the same on every machine.
std::vector<uint16_t> bf16(size_t count) {
    static uint32_t state = 1;
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<uint16_t>((state >> 31) << 15 | (0x3B80 + (state >> 16) % 0x400));
    }
    return values;
}

uint64_t fnv(const std::vector<uint8_t>& bytes) {
    uint64_t hash = 14695981039346656037u;
    for (uint8_t byte : bytes) hash = (hash ^ byte) * 1099511628211u;
    return hash;
}

const kgen_kernel* choose(CUdevice device) {
    int major = 0, minor = 0;
    CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    CHECK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    const kgen_kernel* kernel = kgen_cubins_find("query-h8-b8", major, minor);
    if (!kernel) {
        std::fprintf(stderr, "no query-h8-b8 for compute capability %d.%d\n", major, minor);
        std::exit(1);
    }
    return kernel;
}

CUfunction load(const kgen_kernel& kernel) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CHECK(cuModuleLoadData(&module, kernel.cubin));
    CHECK(cuModuleGetFunction(&function, module, kernel.entry));
    CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                             static_cast<int>(kernel.smem_dynamic)));
    if (kernel.cluster > 8)
        CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    return function;
}

// Programmatic dependent launch: start before the stream's previous kernel ends.
void launch(const kgen_kernel& kernel, CUfunction function, void* params, CUstream stream) {
    CUlaunchAttribute overlap = {};
    overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {};
    config.gridDimX = kernel.grid[0], config.gridDimY = kernel.grid[1];
    config.gridDimZ = kernel.grid[2];
    config.blockDimX = kernel.block[0], config.blockDimY = kernel.block[1];
    config.blockDimZ = kernel.block[2];
    config.sharedMemBytes = kernel.smem_dynamic;
    config.hStream = stream;
    config.attrs = &overlap, config.numAttrs = 1;
    void* arguments[] = {params};
    CHECK(cuLaunchKernelEx(&config, function, arguments, nullptr));
}

}  // namespace

int main() {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    const kgen_kernel& kernel = *choose(device);
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    const CUfunction function = load(kernel);

    std::vector<int64_t> slots;
    for (int row = 0; row < kRows; ++row) slots.push_back(row * 7);
    kgen_query_rows8_params params = {};
    params.qkv = to_device(bf16(kRows * kWidth));
    params.w_qa = to_device(bf16(1536));
    params.w_kva = to_device(bf16(512));
    params.w_qb = to_device(bf16(kHeads * 192 * 1536));
    params.w_uk = to_device(bf16(kHeads * 128 * 512));
    params.cache = to_device(std::vector<uint8_t>(kPages * kPage * kRow));
    params.slots = to_device(slots);
    params.q_scale_inv = to_device(std::vector<float>{0.5f});
    params.k_scale_inv = to_device(std::vector<float>{2.0f});
    std::vector<uint8_t> out(kRows * kHeads * kRow);
    params.out = to_device(out);
    params.qkv_stride = kWidth;
    params.w_uk_stride = 128 * 512;
    params.page_stride = kPage * kRow;
    params.out_stride = kHeads * kRow;
    params.page_size = kPage;
    params.eps = 1e-6f;
    params.num_rows = kRows;

    launch(kernel, function, &params, nullptr);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(out.data(), reinterpret_cast<CUdeviceptr>(params.out), out.size()));
    std::printf("%s %s grid %u %u %u block %u cluster %u smem %u params %u\n", kernel.config,
                kernel.arch, kernel.grid[0], kernel.grid[1], kernel.grid[2], kernel.block[0],
                kernel.cluster, kernel.smem_dynamic, kernel.params_size);
    std::printf("out %016llx\n", static_cast<unsigned long long>(fnv(out)));
    return 0;
}
