// dcp_value_tiles16_h8_dcp2: the tail of a layer under decode context parallelism: send every head's partial attention to its
// owner, merge what the ranks send by their LSEs, then W_UV and the sigmoid gate.
//
// A cluster of 4 CTAs owns one head for 16 token rows. All clusters of a tile of rows share the sending; CTA
// `part` merges 128 latent columns, gives them to all four, and finishes 32 outputs.
#include "value/sigmoid.cuh"
#include "ptx/mailbox.cuh"
#include "ptx/mma.cuh"
#include "release.cuh"

constexpr int kNumHeads = 8;
constexpr int kNumTokens = 16;  // token rows of a CTA's tile
constexpr int kClusterSize = 4;  // CTAs that share one head
constexpr int kNumThreads = 128;
constexpr int kCtasPerSm = 2;
constexpr int kTokensPerRequest = 1;
constexpr Release kRelease = Release::wait;
constexpr int kRanks = 2;
constexpr int kMailboxHeads = 16;  // rows of a token in the query mailbox
constexpr int kMailboxRow = 576 * 1;    // bytes
constexpr int kWatchdog = 0;           // milliseconds of a poll; 0: none
constexpr int kSmemWeights = 0;
constexpr int kSmemLatent = 33280;
constexpr int kSmemPartials = 49920;
constexpr int kSmemBarriers = 58112;

constexpr int kLatentColumns = 512;
constexpr int kValueColumns = 128;                   // outputs of a head
constexpr int kOutputs = kValueColumns / kClusterSize;
constexpr int kMerged = kLatentColumns / kClusterSize;
constexpr int kWarps = kNumThreads / 32;
constexpr int kTokenThreads = kNumThreads / kNumTokens;  // that merge one token's columns
constexpr int kPieces = kMerged / 8 / kTokenThreads;     // 16-byte pieces a thread
constexpr int kSteps = kLatentColumns / kWarps / 16;     // of K, a warp's
constexpr int kPitch = 2 * kLatentColumns + 16;          // bytes; 65 * 16: ldmatrix without bank conflicts
constexpr float kLargest = 3.4028234664e38f;
constexpr float kNoSource = -3.0e38f;                    // LSE of a source without keys

static_assert(kNumTokens == 16 && kOutputs == 32, "tokens are the M side of one MMA, outputs four tiles");
static_assert(kNumTokens * kOutputs == 4 * kNumThreads, "a thread finishes four outputs");

struct Params {
    const bf16* rows;  // [num_rows, 16, 512]
    const float* lse;  // [num_rows, 16]
    const int32_t* local_lengths;  // [num_rows]
    const bf16* w_uv;  // [heads, 128, 512]
    e4m3* mailbox;  // [num_rows, 16, 576]
    bf16* partials;  // [2, capacity, 8, 512]
    float* lse_box;  // [2, lse_capacity, 8]
    const int64_t* partial_peers;  // [2]
    const int64_t* lse_peers;  // [2]
    const bf16* gate;  // [num_rows, heads * 128]
    const int32_t* lengths;  // [num_rows]
    bf16* out;  // [num_rows, heads * 128]
    int64_t rows_stride;  // elements, rows
    int64_t lse_stride;  // elements, lse
    int64_t w_uv_stride;  // elements, w_uv
    int64_t gate_stride;  // elements, gate
    int64_t out_stride;  // elements, out
    int32_t capacity;  // extent, partials
    int32_t lse_capacity;  // extent, lse_box
    int32_t num_rows;  // token rows
    int32_t rank;  // of this GPU among the ranks
};
static_assert(sizeof(Params) == 152, "the host packs 152 bytes");

namespace {

// Two BF16 values without negative zeros, so that no pair is the sentinel.
__device__ uint32_t positive_zeros(uint32_t pair) {
    if ((pair & 0x7FFFu) == 0) pair &= 0xFFFF0000u;
    if ((pair & 0x7FFF0000u) == 0) pair &= 0x0000FFFFu;
    return pair;
}

// Bytes from the start of a partial mailbox [ranks, cap, heads, 512] to a row.
__device__ int64_t partial_row(const Params& params, int source, int token, int head) {
    return ((static_cast<int64_t>(source) * params.capacity + token) * kNumHeads + head) * 2 * kLatentColumns;
}

__device__ int64_t lse_place(const Params& params, int source, int token, int head) {
    return ((static_cast<int64_t>(source) * params.capacity + token) * kNumHeads + head) * 4;
}

// A warp a row: the tile's rows of all heads go to their owners.
__device__ void send_rows(const Params& params, int first, int count, int warp, int lane) {
    constexpr int kHeads = kRanks * kNumHeads;
    for (int i = warp; i < count * kHeads; i += kNumHeads * kClusterSize * kWarps) {
        const int token = first + i / kHeads, head = i % kHeads, owner = head / kNumHeads;
        float lse = __uint_as_float(ld_global_cg_4(params.lse + token * params.lse_stride + head));
        const int length = static_cast<int32_t>(ld_global_cg_4(params.local_lengths + token / kTokensPerRequest));
        const bool valid = length > 0 && fabsf(lse) <= kLargest;  // neither NaN nor infinite
        const bf16* row = params.rows + token * params.rows_stride + head * kLatentColumns + 16 * lane;
        uint8_t* target = reinterpret_cast<uint8_t*>(params.partial_peers[owner]) +
                          partial_row(params, params.rank, token, head % kNumHeads) + 32 * lane;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            Vec16 v = {};
            if (valid) v = ld_global_cg_16(row + 8 * j);
#pragma unroll
            for (int k = 0; k < 4; ++k) v.word[k] = positive_zeros(v.word[k]);
            st_relaxed_sys(target + 16 * j, v);
        }
        if (!valid) lse = kNoSource;
        if (lane == 0)
            st_relaxed_sys(reinterpret_cast<uint8_t*>(params.lse_peers[owner]) +
                             lse_place(params, params.rank, token, head % kNumHeads), __float_as_uint(lse));
    }
}

// The tile's queries are read: refill their mailbox.
__device__ void refill_queries(const Params& params, int first, int count, int thread) {
    constexpr int kPieces = kRanks * kNumHeads * kMailboxRow / 16;
    uint8_t* box = reinterpret_cast<uint8_t*>(params.mailbox);
    const Vec16 empty = {kSentinel, kSentinel, kSentinel, kSentinel};
    for (int i = thread; i < count * kPieces; i += kNumHeads * kClusterSize * kNumThreads) {
        const int64_t row = static_cast<int64_t>(first + i / kPieces) * kMailboxHeads * kMailboxRow;
        store_global16(box + row + i % kPieces * 16, empty);
    }
}

// This thread's columns of a token, merged over the sources in rank order; the sources' rows are refilled.
__device__ void merge(Vec16 (&merged)[kPieces], const Params& params, int token, int head, int column) {
    float weight[kRanks], largest = -kLargest, total = 0.0f;
    const uint8_t* lses = reinterpret_cast<const uint8_t*>(params.lse_box);
#pragma unroll
    for (int s = 0; s < kRanks; ++s) {
        const Wanted wanted{0, kLseBox, s, token, head, 0};
        const uint8_t* place = lses + lse_place(params, s, token, head);
        weight[s] = __uint_as_float(wait_for_word<kSentinel, kWatchdog>(place, wanted));
        largest = fmaxf(largest, weight[s]);
    }
#pragma unroll
    for (int s = 0; s < kRanks; ++s) {
        weight[s] = weight[s] == kNoSource ? 0.0f : exp2f(weight[s] - largest);
        total += weight[s];
    }
    float sum[kPieces][8] = {};
    const Vec16 empty = {kPartialSentinel, kPartialSentinel, kPartialSentinel, kPartialSentinel};
#pragma unroll
    for (int s = 0; s < kRanks; ++s) {
        uint8_t* row = reinterpret_cast<uint8_t*>(params.partials) + partial_row(params, s, token, head) + 2 * column;
        const float share = total > 0.0f ? __fdiv_rn(weight[s], total) : 0.0f;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const Wanted wanted{0, kPartialBox, s, token, head, column / 2 + 4 * i};
            const Vec16 v = wait_for_words<kPartialSentinel, kWatchdog>(row + 16 * i, wanted);
            store_global16(row + 16 * i, empty);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sum[i][2 * k] = fmaf(share, bf16_low(v.word[k]), sum[i][2 * k]);
                sum[i][2 * k + 1] = fmaf(share, bf16_high(v.word[k]), sum[i][2 * k + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kPieces * 4; ++i)
        merged[i / 4].word[i % 4] = to_bf16x2(sum[i / 4][i % 4 * 2], sum[i / 4][i % 4 * 2 + 1]);
}

}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_dcp_value_tiles16_h8_dcp2(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    uint8_t* const storage = dynamic_shared();
    const SharedAddr weights = shared_addr(storage) + kSmemWeights, latent = shared_addr(storage) + kSmemLatent;
    const SharedAddr partials = shared_addr(storage) + kSmemPartials;
    const SharedAddr weights_barrier = shared_addr(storage) + kSmemBarriers, latent_barrier = weights_barrier + 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = blockIdx.x, head = blockIdx.y, first = blockIdx.z * kNumTokens;
    const int count = min(kNumTokens, params.num_rows - first), cta = head * kClusterSize + part;
    if (count <= 0) return griddepcontrol_wait();  // the whole cluster

    // Before the wait: the CTA's rows of W_UV, then this warp's quarter of them as fragments.
    if (threadIdx.x == 0) {
        mbarrier_init(weights_barrier, 1);
        mbarrier_init(latent_barrier, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(weights_barrier, kOutputs * 2 * kLatentColumns);
        mbarrier_arrive_expect_tx(latent_barrier, count * 2 * kLatentColumns);
    }
    __syncthreads();
    barrier_cluster_arrive_relaxed();
    if (lane == 0) {
        const bf16* w_uv = params.w_uv + head * params.w_uv_stride + part * kOutputs * kLatentColumns;
        for (int row = warp; row < kOutputs; row += kWarps)
            cp_async_bulk(weights + row * kPitch, w_uv + row * kLatentColumns, 2 * kLatentColumns, weights_barrier);
    }
    mbarrier_wait(weights_barrier, 0);
    Vec16 w[2][kSteps];  // of outputs 0..15 and 16..31
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
        const int row = i / kSteps * 16 + lane % 8 + lane / 16 * 8, step = warp * kSteps + i % kSteps;
        w[i / kSteps][i % kSteps] = ldmatrix_x4(weights + row * kPitch + 32 * step + lane / 8 % 2 * 16);
    }
    barrier_cluster_wait();
    griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();

    send_rows(params, first, count, cta * kWarps + warp, lane);
    refill_queries(params, first, count, cta * kNumThreads + threadIdx.x);

    // A thread finishes four outputs of one row: its gate and length come with the sources.
    const int row = first + threadIdx.x / 8;
    const int output = head * kValueColumns + part * kOutputs + threadIdx.x % 8 * 4;
    const bool valid = row < params.num_rows;
    Vec8 gate = {};
    bool empty = true;
    if (valid) {
        gate = ld_global_cg_8(params.gate + row * params.gate_stride + output);
        empty = static_cast<int32_t>(ld_global_cg_4(params.lengths + row / kTokensPerRequest)) <= 0;
    }
    const int token = threadIdx.x / kTokenThreads, column = part * kMerged + threadIdx.x % kTokenThreads * 8 * kPieces;
    if (token < count) {
        Vec16 merged[kPieces];
        merge(merged, params, first + token, head, column);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const SharedAddr place = latent + token * kPitch + 2 * column + 16 * i;
#pragma unroll
            for (int rank = 0; rank < kClusterSize; ++rank)
                st_async(mapa(place, rank), merged[i], mapa(latent_barrier, rank));
        }
    }
    mbarrier_wait(latent_barrier, 0);

    // All four CTAs have read this head's LSEs: refill them.
    if (part == 0) {
        for (int i = threadIdx.x; i < count * kRanks; i += kNumThreads) {
            const int64_t place = lse_place(params, i % kRanks, first + i / kRanks, head);
            *reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(params.lse_box) + place) = kSentinel;
        }
    }

    // Split the latent over the warps, then add the four partial products.
    Acc acc[4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
        const Vec16 a = ldmatrix_x4(latent + lane % 16 * kPitch + 32 * (warp * kSteps + k) + lane / 16 * 16);
#pragma unroll
        for (int n = 0; n < 4; ++n)
            mma_m16n8k16(acc[n], a.word[0], a.word[1], a.word[2], a.word[3], w[n / 2][k].word[n % 2 * 2],
                         w[n / 2][k].word[n % 2 * 2 + 1]);
    }
    const SharedAddr mine = partials + 4 * ((warp * kNumTokens + lane / 4) * kOutputs + 2 * (lane % 4));
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        st_shared_8(mine + 32 * n, acc[n].c[0], acc[n].c[1]);
        st_shared_8(mine + 32 * n + 4 * 8 * kOutputs, acc[n].c[2], acc[n].c[3]);
    }
    __syncthreads();
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
        const Vec16 v = ld_shared_16(partials + 4 * i * kNumTokens * kOutputs + 16 * threadIdx.x);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] += __uint_as_float(v.word[k]);
    }
    if (!valid) return;
    Vec8 out = {};
    if (!empty) out = {apply_gate(to_bf16x2(sum[0], sum[1]), gate.word[0]),
                       apply_gate(to_bf16x2(sum[2], sum[3]), gate.word[1])};
    *reinterpret_cast<Vec8*>(params.out + row * params.out_stride + output) = out;
}
