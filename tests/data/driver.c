// A CUDA driver without a GPU: memory is the host's, and a launch is written to stderr.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char entry[128];
static int smem_limit;

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char** text) {
    (void)error;
    *text = "what it means";
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    const char* text = getenv("FAKE_CAPABILITY");
    const int capability = text ? atoi(text) : 90;
    const int major = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    *value = major ? capability / 10 : capability % 10;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    (void)device;
    *context = (CUcontext)entry;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { return context ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN; }
CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (memcmp(image, "\x7f" "ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
    *module = (CUmodule)(void*)image;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    snprintf(entry, sizeof entry, "%s", name);
    *function = (CUfunction)module;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) smem_limit = value;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* pointer, size_t size) {
    *pointer = (CUdeviceptr)malloc(size);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
    memcpy((void*)to, from, size);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
    memcpy(to, (void*)from, size);
    return CUDA_SUCCESS;
}
// The entry, grid, block, shared memory, attribute, and the parameter struct in hex.
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
    const unsigned char* bytes = params[0];
    if (!f || extra || (int)c->sharedMemBytes > smem_limit) return CUDA_ERROR_INVALID_VALUE;
    fprintf(stderr, "%s %u %u %u %u %u %u ", entry, c->gridDimX, c->gridDimY, c->gridDimZ,
            c->blockDimX, c->sharedMemBytes, (unsigned)c->attrs[0].id);
    for (int i = 0; i < 128; ++i) fprintf(stderr, "%02x", bytes[i]);
    fprintf(stderr, "\n");
    return CUDA_SUCCESS;
}
