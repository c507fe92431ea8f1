// query_wgmma16x4: MLA decode query, scheme `wgmma`, K cut in four and the rows in two.
// RMSNorm of q_a, Q_B, W_UK absorption and the paged KV insert in one kernel.
//
// A cluster of 8 CTAs owns one head for 16 tokens: weights are read once. CTA `part` multiplies the 96 Q_B
// rows of group part % 2 over the K slice part / 2, raw x times w_qa; it adds the four slices' products of its quarter
// of the tokens, which are a factor away from the norm; and it absorbs half of the tokens into 128 latent columns.
//
//   warps    do
//   all      copies; Q_B: warpgroup w has rows 48 w.., its warp `strip` tokens 16 * strip..; absorb: 16 columns each
//   0 .. 5   add the products of 16 rows each: nope goes to the CTAs that absorb it, rope to the query
//   6, 7     KV rows, which are loaded right after the wait
//
//   barrier       guards                                  filled by                     waited for by
//   strip + 2     x of 16 tokens, its slots of the ring   the two warps of a strip      these
//   ready         Q_B's first chunks, which others write  all warps of all CTAs         all warps
//   sums          sums of squares                         st.async of all CTAs          warps 0 .. 5
//   partials      products                                st.async of the four slices   warps 0 .. 5
//   nope          nope columns of half of the tokens      st.async of four CTAs         all warps
#include "query/absorb.cuh"
#include "query/kv/fp8_multiply.cuh"
#include "query/piece.cuh"
#include "query/store.cuh"
#include "ptx/wgmma.cuh"
#include "release.cuh"

constexpr int kNumTokens = 16;  // token rows of a CTA's tile
constexpr int kClusterSize = 8;  // CTAs that share one head
constexpr int kNumThreads = 256;  
constexpr int kCtasPerSm = 2;
constexpr bool kDsa = false;  // the stock C++ form of the RMSNorm
constexpr bool kStoreQc = false;
constexpr bool kLate = false;
constexpr Release kRelease = Release::wait;

constexpr int kLoraColumns = 1536;  // q_a, the depth of Q_B
constexpr int kHeadRows = 192;      // Q_B rows of a head: 128 nope, 64 rope
constexpr int kQueryColumns = 576;  // 512 latent, 64 rope
constexpr int kRowsPerCta = kHeadRows / kClusterSize;
constexpr int kComputeWarps = kNumThreads / 32 - 0;  // beside those of the KV insert alone
constexpr int kComputeThreads = 32 * kComputeWarps;
constexpr int kComputeBarrier = 1;  // block barrier of the compute warps

static_assert(kClusterSize == 8, "64 latent columns a CTA: a cluster is 8 CTAs");
static_assert(kComputeWarps == 8, "one warp for every 8 of the CTA's latent columns");

struct Params {
    const bf16* qkv;  // [num_rows, >=2112]
    const bf16* w_qa;  // [1536]
    const bf16* w_kva;  // [512]
    const bf16* w_qb;  // [heads * 192, 1536]
    const bf16* w_uk;  // [heads, 128, 512]
    uint8_t* cache;  // [any, page_size, 576]
    const int64_t* slots;  // [num_rows]
    const float* q_scale_inv;  // []
    const float* k_scale_inv;  // []
    e4m3* out;  // [num_rows, heads, 576]
    int64_t qkv_stride;  // elements, qkv
    int64_t w_uk_stride;  // elements, w_uk
    int64_t page_stride;  // elements, cache
    int64_t out_stride;  // elements, out
    int32_t page_size;  // extent, cache
    float eps;  // of the RMSNorms
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 128, "the host packs 128 bytes");

namespace {

using Query = e4m3;  // element of the output

__device__ float load_query_scale(const Params& params) {
    return *params.q_scale_inv;
}

__device__ KvScale load_kv_scale(const Params& params) {
    return {*params.k_scale_inv};
}

// Where the q_c row of `token` goes.
[[maybe_unused]] __device__ bf16* q_c_row(const Params& params, int token) {
    return nullptr;
}

__device__ float query_rrms(float sum, float eps) {
    if constexpr (kDsa) return rrms_dsa(sum, eps);
    return rrms_dense(sum, eps);
}

// The 576 columns of this head's query of `token`.
__device__ Query* query_row(const Params& params, int token, int head) {
    return params.out + token * params.out_stride + head * kQueryColumns;
}

// Wait for the grids before this one; the next one may start now, if it has not yet. A late kernel runs
// beside the grid before it and waits at its end, so that what follows still waits for both.
__device__ void start_step() {
    if constexpr (!kLate) griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();
}

__device__ void end_step() {
    if constexpr (kLate) griddepcontrol_wait();
}

// A token's row on its way into the cache.
struct KvInsert {
    int64_t slot;  // negative: nowhere
    KvRow row;
};

__device__ KvInsert load_kv_insert(const Params& params, int token, int lane) {
    return {ld_global_cg_s64(params.slots + token),
            load_kv_row(params.qkv + token * params.qkv_stride + kLoraColumns, lane)};
}

__device__ void store_kv_insert(const Params& params, KvInsert& insert, const KvWeights& weights, KvScale scale,
                                int lane) {
    if (insert.slot < 0) return;
    normalise(insert.row, weights, params.eps);
    uint8_t* page = params.cache + insert.slot / params.page_size * params.page_stride;
    store_kv_row(page + insert.slot % params.page_size * kKvRowBytes, insert.row, scale, lane);
}

// The KV insert's warp: the rows of this tile are dealt over all of its CTAs.
[[maybe_unused]] __device__ void insert_kv(const Params& params, int first, int count, int cta, int lane) {
    const KvWeights weights = load_kv_weights(params.w_kva, lane);
    const KvScale scale = load_kv_scale(params);
    start_step();
    for (int token = first + cta; token < first + count; token += gridDim.y * kClusterSize) {
        KvInsert insert = load_kv_insert(params, token, lane);
        store_kv_insert(params, insert, weights, scale, lane);
    }
    end_step();
}

}  // namespace

namespace {

// Eight rope columns of a token's query, Q_B's rows from `head_row` of the head on, in BF16: to the query, and with
// DCP to every rank's mailbox.
[[maybe_unused]] __device__ void store_rope8(const Params& params, int token, int head, int head_row, const Vec16& octet,
                                             float scale) {
    store_query8(query_row(params, token, head) + kKvColumns + head_row - kNopeColumns, octet, scale);
}

}  // namespace

// KV rows that a warp with other work inserts: they come to shared memory meanwhile, not to registers.

namespace {

constexpr int kKvBytes = 2 * (kKvColumns + 64);  // of a row as it comes

// Start the copies of a token's KV row; its slot.
__device__ int64_t start_kv_row(const Params& params, SharedAddr kv, int token, int lane) {
    const bf16* row = params.qkv + token * params.qkv_stride + kLoraColumns;
#pragma unroll
    for (int i = 0; i < 2; ++i) cp_async_16(kv + 16 * (2 * lane + i), row + 8 * (2 * lane + i));
    if (lane < 8) cp_async_16(kv + 2 * kKvColumns + 16 * lane, row + kKvColumns + 8 * lane);
    return ld_global_cg_s64(params.slots + token);
}

// Insert the KV rows of this warp, `token` and every `step`-th: the first is on its way.
__device__ void insert_kv_rows(const Params& params, SharedAddr kv, SharedAddr w_kva, KvScale scale, int64_t slot,
                               int token, int step, int end, int lane) {
    const KvWeights weights = {ld_shared_16(w_kva + 32 * lane), ld_shared_16(w_kva + 32 * lane + 16)};
    for (; token < end; token += step) {
        cp_async_wait_group<0>();
        __syncwarp();
        KvInsert insert = {slot, {{ld_shared_16(kv + 32 * lane), ld_shared_16(kv + 32 * lane + 16)},
                                  __float_as_uint(ld_shared_f32(kv + 2 * kKvColumns + 4 * lane))}};
        __syncwarp();
        if (token + step < end) slot = start_kv_row(params, kv, token + step, lane);
        cp_async_commit_group();
        store_kv_insert(params, insert, weights, scale, lane);
    }
}

}  // namespace
constexpr int kSplits = 4;  // slices of K
constexpr int kSmemWeights = 0;  // the first chunks' place: products and nope, later
constexpr int kSmemX = 73728;  // w_uk before
constexpr int kSmemSums = 106496;
constexpr int kSmemWqa = 106752;
constexpr int kSmemWkva = 107520;
constexpr int kSmemKv = 108544;  // a row for each of two warps
constexpr int kSmemBarriers = 110848;

constexpr int kRowGroups = kClusterSize / kSplits;
constexpr int kRows = kRowsPerCta * kSplits;        // of Q_B, this CTA's: 64 nope, 32 rope
constexpr int kNopeRows = kNopeColumns / kRowGroups;
constexpr int kColumns = kLoraColumns / kSplits;   // of K, this CTA's
constexpr int kChunks = kColumns / 64;             // 64 columns: a row of 128 bytes
constexpr int kWeightChunk = kRows * 128, kXChunk = kNumTokens * 128;  // bytes
constexpr int kSlots = 6;                     // chunks of x that lie in shared memory
constexpr int kStrips = kNumTokens / 16;
constexpr int kGroupTokens = kNumTokens / kSplits;  // whose products this CTA adds
constexpr int kHalfTokens = kNumTokens / 2;         // that this CTA absorbs
constexpr int kFragments = kRows / 16;
constexpr int kSumsPerToken = kSplits * 4;          // a slice's chunks are dealt over two CTAs and two warpgroups

using Piece = Vec16;               // a lane's products of one token and 16 rows: rows 2t, 2t + 1, 2t + 8, 2t + 9
constexpr int kFragmentBytes = kGroupTokens * 4 * sizeof(Piece), kSourceBytes = kFragments * kFragmentBytes;
constexpr int kLaneTokens = (kGroupTokens + 7) / 8;  // whose products a lane adds
constexpr int kNopeBytes = kHalfTokens * kNopeColumns * 2;
constexpr int kReadyChunks = 3;
constexpr int kKvWarps = kComputeWarps - kFragments;

static_assert(kSplits == 4 && kRowGroups == 2 && kRows == 96, "a fragment of 16 rows for each of six warps");
static_assert(kComputeWarps == 8 && kChunks == 6, "two warpgroups; the squares of each chunk are one's");
static_assert(kNumTokens == 16 || kNumTokens == 32 || kNumTokens == 64, "strips of 16 tokens on wgmma's M side of 64");
static_assert(kSplits * kSourceBytes <= 2 * kWeightChunk && kNopeBytes <= kWeightChunk, "they lie over three chunks");
static_assert(sizeof(Query) == 1 && !kStoreQc, "x times w_qa is rounded before the norm: q_c is never formed");

namespace {

struct Smem {
    SharedAddr base;
    __device__ SharedAddr weights() const { return base + kSmemWeights; }
    __device__ SharedAddr partials() const { return base + kSmemWeights; }
    __device__ SharedAddr nope() const { return base + kSmemWeights + 2 * kWeightChunk; }
    __device__ SharedAddr x() const { return base + kSmemX; }
    __device__ SharedAddr uk(int tile) const { return base + kSmemX + tile * kNopeColumns * 128; }
    __device__ SharedAddr sums() const { return base + kSmemSums; }
    __device__ SharedAddr w_qa() const { return base + kSmemWqa; }
    __device__ SharedAddr w_kva() const { return base + kSmemWkva; }
    __device__ SharedAddr kv(int warp) const { return base + kSmemKv + (warp - kFragments) * kKvBytes; }
    __device__ SharedAddr ready_barrier() const { return base + kSmemBarriers; }
    __device__ SharedAddr sums_barrier() const { return base + kSmemBarriers + 8; }
    __device__ SharedAddr partials_barrier() const { return base + kSmemBarriers + 16; }
    __device__ SharedAddr nope_barrier() const { return base + kSmemBarriers + 24; }
};

// Which part of the head's work is whose.
struct Part {
    int rank;
    __device__ int slice() const { return rank / kRowGroups; }
    __device__ int row_group() const { return rank % kRowGroups; }
    __device__ int half() const { return rank / 4; }     // of the tokens, absorbed here
    __device__ int quarter() const { return rank % 4; }  // of the latent columns
};

// Where the 16-byte piece of a row lies in a chunk: the swizzle that wgmma reads.
__device__ SharedAddr swizzled(SharedAddr chunk, int row, int piece) {
    return chunk + 128 * row + 16 * (piece ^ row % 8);
}

__device__ void start_barriers(const Smem& smem) {
    mbarrier_init(smem.ready_barrier(), kClusterSize * kComputeWarps);
    mbarrier_init(smem.sums_barrier(), 1);
    mbarrier_init(smem.partials_barrier(), 1);
    mbarrier_init(smem.nope_barrier(), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(smem.sums_barrier(), kGroupTokens * kSumsPerToken * 4);
    mbarrier_arrive_expect_tx(smem.partials_barrier(), kSplits * kSourceBytes);
    mbarrier_arrive_expect_tx(smem.nope_barrier(), kNopeBytes);
}

// Start the copies of what is read first: w_uk's 128 columns and both norms' weights.
__device__ void start_small_weights(const Params& params, const Smem& smem, int head, Part part) {
    const bf16* w_uk = params.w_uk + head * params.w_uk_stride;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
        stage_uk<kComputeThreads>(smem.uk(tile), w_uk, 2 * part.quarter() + tile, threadIdx.x);
    constexpr int kQaPieces = kColumns / 8, kKvaPieces = kKvColumns / 8;
    const int piece = threadIdx.x;
    if (piece < kQaPieces) cp_async_16(smem.w_qa() + 16 * piece, params.w_qa + kColumns * part.slice() + 8 * piece);
    else if (piece < kQaPieces + kKvaPieces)
        cp_async_16(smem.w_kva() + 16 * (piece - kQaPieces), params.w_kva + 8 * (piece - kQaPieces));
    cp_async_commit_group();
}

// Start the copies of this CTA's Q_B: chunks [96 rows][64 columns].
__device__ void start_weights(const Params& params, const Smem& smem, int head, Part part) {
    constexpr int kStep = kComputeThreads / 8;
    const int piece = threadIdx.x % 8;
#pragma unroll
    for (int n = 0; n < kRows / kStep; ++n) {
        const int row = kStep * n + threadIdx.x / 8;
        const int head_row = row < kNopeRows ? kNopeRows * part.row_group() + row
                                             : kNopeColumns + (kRows - kNopeRows) * part.row_group() + row - kNopeRows;
        const bf16* source = params.w_qb + static_cast<int64_t>(head * kHeadRows + head_row) * kLoraColumns +
                             kColumns * part.slice() + 8 * piece;
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
            cp_async_16(swizzled(smem.weights() + c * kWeightChunk, row, piece), source + 64 * c);
    }
    cp_async_commit_group();
}

// The x of a strip's 16 tokens, loaded by its two warps chunk by chunk: a thread has a piece of tokens r and r + 8.
struct Strip {
    const bf16* source[2];
    bool there[2];  // the others keep what lies at their place, which reaches no output
    SharedAddr target, fragments;

    __device__ Strip(const Params& params, const Smem& smem, int first, int count, Part part, int warp, int lane) {
        const int thread = warp / 4 * 32 + lane, strip = 16 * (warp % 4), piece = thread % 8;
        const bf16* columns = params.qkv + kColumns * part.slice() + 8 * piece;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = strip + thread / 8 + 8 * i;
            source[i] = columns + (first + token) * params.qkv_stride;
            there[i] = token < count;
        }
        target = swizzled(smem.x(), strip + thread / 8, piece);
        fragments = smem.x() + 128 * (strip + lane % 16);
    }

    // Start the copies of chunk `c`.
    __device__ void start(int c) const {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (c < kChunks && there[i]) cp_async_16(target + c % kSlots * kXChunk + 8 * 128 * i, source[i] + 64 * c);
        cp_async_commit_group();
    }

    // This warp's A fragments of chunk `c`.
    __device__ void load(Vec16 (&a)[4], int c, int lane) const {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            a[k] = ldmatrix_x4(swizzled(fragments + c % kSlots * kXChunk, 0, (2 * k + lane / 16) ^ lane % 8));
    }
};

// Multiply the fragments of a chunk by its 64 columns of w_qa, rounding to BF16.
__device__ void scale_columns(Vec16 (&a)[4], const Vec16 (&w_qa)[2]) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[k].word[i] = mul_bf16x2(a[k].word[i], w_qa[k / 2].word[k % 2 * 2 + i / 2]);
}

// Each token's sum over this warp's chunks goes to both CTAs that add its products.
__device__ void send_squares(const SquareSums& squares, const Smem& smem, Part part, int warp, int lane) {
    const int g = lane / 4, t = lane % 4, diagonal = 4 * g + g / 2;
    const float low = __shfl_sync(0xFFFFFFFFu, g % 2 ? squares.even.c[1] : squares.even.c[0], diagonal);
    const float high = __shfl_sync(0xFFFFFFFFu, g % 2 ? squares.odd.c[3] : squares.odd.c[2], diagonal);
    const int token = 16 * (warp % 4) + g + t / 2 * 8;
    const int owner = token / kGroupTokens * kRowGroups + t % 2;
    const int source = 4 * part.slice() + 2 * part.row_group() + warp / 4;
    const SharedAddr place = smem.sums() + 4 * (token % kGroupTokens * kSumsPerToken + source);
    st_async(mapa(place, owner), t / 2 ? high : low, mapa(smem.sums_barrier(), owner));
}

// Q_B over this slice: 48 rows times the strip's tokens.
__device__ void multiply(Acc48& acc, const Strip& strip, bool has_tokens, const Smem& smem, Part part, int warp,
                         int lane) {
    const int group = warp / 4;
    const uint64_t rows = wgmma_descriptor(smem.weights() + group * kWeightChunk / 2);
    Vec16 fragments[2][4] = {};
    SquareSums squares = {};  // of the chunks that are this warp's to square
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
        Vec16 (&a)[4] = fragments[c % 2];
        if (has_tokens) {
            // Eight equal rows: every lane gets the columns 2t, 2t + 1 of four pieces.
            const SharedAddr columns = smem.w_qa() + 128 * c + 16 * (lane / 8);
            const Vec16 w_qa[2] = {ldmatrix_x4(columns), ldmatrix_x4(columns + 64)};
            cp_async_wait_group<kSlots - 2>();
            bar_sync<64>(kComputeBarrier + 1 + warp % 4);
            strip.start(c + kSlots - 1);
            strip.load(a, c, lane);
            if (c % 2 == group && c / (kChunks / 2) == part.row_group())
#pragma unroll
                for (int k = 0; k < 4; ++k) add_token_squares(squares, a[k]);
            scale_columns(a, w_qa);
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma_m64n48k16(acc, a[k], rows + (c * kWeightChunk + 32 * k) / 16);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the other fragments are free
        if (c == kReadyChunks && lane < kClusterSize) mbarrier_arrive_relaxed_cluster(mapa(smem.ready_barrier(), lane));
    }
    if (has_tokens) send_squares(squares, smem, part, warp, lane);
    mbarrier_wait(smem.ready_barrier(), 0);
    wgmma_wait_group<0>();
    wgmma_take(acc);
}

// Where a slice's products of one token of the group and 16 rows lie: a piece for each of four lanes.
__device__ SharedAddr partial(const Smem& smem, int slice, int fragment, int token, int lane) {
    return smem.partials() + slice * kSourceBytes + fragment * kFragmentBytes + (4 * token + lane % 4) * sizeof(Piece);
}

// This warp's products go to the CTAs that add them.
__device__ void send_partials(const Acc48& acc, const Smem& smem, Part part, int warp, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int token = 16 * (warp % 4) + 8 * half + lane / 4;
        const int owner = token / kGroupTokens * kRowGroups + part.row_group();
        const SharedAddr place = mapa(partial(smem, part.slice(), warp / 4 * 3, token % kGroupTokens, lane), owner);
        const SharedAddr barrier = mapa(smem.partials_barrier(), owner);
#pragma unroll
        for (int n = 0; n < 3; ++n) {
            const float* c = acc.c + 8 * n + 2 * half;
            st_async(place + n * kFragmentBytes, pack_piece<Piece>(c[0], c[1], c[4], c[5]), barrier);
        }
    }
}

// The reciprocal RMS of a token of this CTA's group.
__device__ float group_rrms(const Smem& smem, int token, float eps, int lane) {
    float sum[4] = {};
    add_piece<Vec16>(sum, smem.sums() + 4 * (token * kSumsPerToken + 4 * (lane % 4)));
    return query_rrms(sum_lanes<4>((sum[0] + sum[1]) + (sum[2] + sum[3])), eps);
}

// Sixteen columns of a token's query, BF16: this lane's are 2t, 2t + 1 and 2t + 8, 2t + 9.
__device__ void store_sixteen(const Params& params, bool stores, int token, int head, int column, uint32_t low,
                              uint32_t high, float scale, int lane) {
    const uint32_t first = scale_pair<Query>(low, scale), second = scale_pair<Query>(high, scale);
    // Neighbours swap a pair: four columns a lane, an even one's of the first eight.
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, lane % 2 ? first : second, 1);
    const uint32_t four = lane % 2 ? other | second << 16 : first | other << 16;
    Query* query = query_row(params, token, head) + column + lane % 2 * 8 + lane % 4 / 2 * 4;
    if (stores) *reinterpret_cast<uint32_t*>(query) = four;
}

// Add the slices' products of 16 rows, for the tokens g and g + 8 of this CTA's group, and scale them by the norm.
__device__ void add_slices(uint32_t (&y)[kLaneTokens][2], const Smem& smem, int fragment, float eps, int lane) {
    float rr[kLaneTokens], sum[kLaneTokens][4] = {};
    mbarrier_wait(smem.sums_barrier(), 0);
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) rr[i] = group_rrms(smem, (lane / 4 + 8 * i) % kGroupTokens, eps, lane);
    mbarrier_wait(smem.partials_barrier(), 0);
    const SharedAddr mine = partial(smem, 0, fragment, lane / 4 % kGroupTokens, lane);
#pragma unroll
    for (int slice = 0; slice < kSplits; ++slice)
#pragma unroll
        for (int i = 0; i < kLaneTokens; ++i)
            add_piece<Piece>(sum[i], mine + slice * kSourceBytes + 8 * i * 4 * sizeof(Piece));
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
        y[i][0] = to_bf16x2(sum[i][0] * rr[i], sum[i][1] * rr[i]);
        y[i][1] = to_bf16x2(sum[i][2] * rr[i], sum[i][3] * rr[i]);
    }
}

// Nope columns 16 * k.. of this lane's tokens go to the four CTAs that absorb them.
__device__ void send_nope(const uint32_t (&y)[kLaneTokens][2], const Smem& smem, Part part, int k, int lane) {
    const int token = part.slice() % 2 * kGroupTokens + lane / 4;
    const SharedAddr place = smem.nope() + 32 * (k * kHalfTokens + token) + 8 * (lane % 4);
    if (lane / 4 >= kGroupTokens) return;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const int peer = 4 * part.half() + n;
        const SharedAddr target = mapa(place, peer), barrier = mapa(smem.nope_barrier(), peer);
#pragma unroll
        for (int i = 0; i < kLaneTokens; ++i) st_async(target + 8 * 32 * i, Vec8{y[i][0], y[i][1]}, barrier);
    }
}

// Add the products of this warp's 16 rows: nope goes to the CTAs that absorb it, rope to the query.
__device__ void add_partials(const Params& params, const Smem& smem, Part part, int fragment, int first, int count,
                             int head, float q_scale_inv, int lane) {
    uint32_t y[kLaneTokens][2];
    add_slices(y, smem, fragment, params.eps, lane);
    if (fragment < kNopeRows / 16) return send_nope(y, smem, part, part.row_group() * kNopeRows / 16 + fragment, lane);
    const int column = kKvColumns + part.row_group() * (kRows - kNopeRows) + 16 * fragment - kNopeRows;
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
        const int row = lane / 4 + 8 * i, token = part.slice() * kGroupTokens + row;
        store_sixteen(params, row < kGroupTokens && token < count, first + token, head, column, y[i][0], y[i][1],
                      q_scale_inv, lane);
    }
}

}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_query_wgmma16x4(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    const Smem smem = {shared_addr(dynamic_shared())};
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;  // the same for a warp
    const Part part = {static_cast<int>(blockIdx.x)};
    const int head = blockIdx.y, first = blockIdx.z * kNumTokens;
    const int count = min(kNumTokens, params.num_rows - first);
    if (count <= 0) return griddepcontrol_wait();  // the whole cluster

    // Before the wait: copies of weights only; w_uk's fragments make room for x.
    start_small_weights(params, smem, head, part);
    start_weights(params, smem, head, part);
    if (threadIdx.x == 0) start_barriers(smem);
    const float q_scale_inv = load_query_scale(params);
    const KvScale kv_scale = load_kv_scale(params);
    cp_async_wait_group<1>();
    __syncthreads();
    const UkColumns w_uk = load_uk_columns(smem.uk(warp / 4), warp % 4 * 2, lane);
    barrier_cluster_arrive_relaxed();
    cp_async_wait_group<0>();
    fence_proxy_async();
    __syncthreads();
    const bool has_tokens = warp % 4 < kStrips;
    const Strip strip(params, smem, first, count, part, warp, lane);
    barrier_cluster_wait();
    start_step();

    // Start the copies of x, and of this warp's first KV row.
    const int ctas = gridDim.y * kClusterSize;
    const int kv_token = warp < kFragments ? count : head * kClusterSize + part.rank + (warp - kFragments) * ctas;
    const SharedAddr kv = smem.kv(warp);
    int64_t slot = -1;
    if (kv_token < count) slot = start_kv_row(params, kv, first + kv_token, lane);
#pragma unroll
    for (int c = 0; c < kSlots - 1; ++c) strip.start(c);

    // Q_B over this slice; sums and products go to the CTAs that add them.
    Acc48 acc = {};
    multiply(acc, strip, has_tokens, smem, part, warp, lane);
    if (has_tokens) send_partials(acc, smem, part, warp, lane);

    // Add the slices; meanwhile two warps store the KV rows.
    if (warp < kFragments) add_partials(params, smem, part, warp, first, count, head, q_scale_inv, lane);
    else insert_kv_rows(params, kv, smem.w_kva(), kv_scale, slot, first + kv_token, kKvWarps * ctas, first + count, lane);

    // Absorb: warp w owns latent columns 16 w.. of this CTA's 128.
    mbarrier_wait(smem.nope_barrier(), 0);
#pragma unroll
    for (int tile = 0; tile < kHalfTokens; tile += 8) {
        uint32_t latent[2];
        absorb_columns<kHalfTokens>(latent, smem.nope() + 32 * tile, w_uk, lane);
        const int token = part.half() * kHalfTokens + tile + lane / 4;
        store_sixteen(params, token < count, first + token, head, 128 * part.quarter() + 16 * warp, latent[0],
                      latent[1], q_scale_inv, lane);
    }
    end_step();
}
