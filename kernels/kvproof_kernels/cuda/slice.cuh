// slice.cuh: what one block of threads works on, and where its rows are.
#pragma once
#include "device.cuh"
#include "params.h"

namespace paged {

enum Feature { SOFTCAP = 1, ALIBI = 2 };  // compiled in when asked for: other kernels pay nothing

constexpr float NEG_INF = -3e38f;  // finite: the difference of two is 0, not NaN
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;

// The tokens of a sequence that its newest one sees, dealt out to `parts` blocks of threads.
struct Span {
    int tokens;  // length of the sequence
    int begin;   // first token that the window leaves
    int parts;

    __device__ __forceinline__ Span(const Params& p, int sequence) {
        tokens = max(__ldg(p.seq_lens + sequence), 0);
        begin = max(tokens - p.window, 0);
        parts = (tokens - begin + p.split_tokens - 1) / p.split_tokens;
    }
};

// Some tokens of one sequence, and up to HEADS query heads that share a KV head.
// grid (splits, KV heads x tiles of query heads, sequences), WARPS * 32 threads.
template <int HEADS_, int WARPS_, int FEATURES_> struct Slice {
    static constexpr int HEADS = HEADS_, WARPS = WARPS_, FEATURES = FEATURES_, THREADS = WARPS * 32;
    static constexpr int TABLE_ENTRIES = THREADS * 4;  // block-table entries staged at a time

    const Params& p;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int sequence = blockIdx.z, split = blockIdx.x;
    const int group = p.query_heads / p.kv_heads, tiles = (group + HEADS - 1) / HEADS;
    const int kv_head = blockIdx.y / tiles;
    const int head0 = kv_head * group + blockIdx.y % tiles * HEADS;
    const int heads = min(HEADS, (kv_head + 1) * group - head0);
    const Span span{p, sequence};
    int* const table = (int*)dynamic_shared();
    char* const scratch = dynamic_shared() + TABLE_ENTRIES * 4;  // the rings, later the merge

    __device__ __forceinline__ Slice(const Params& p) : p(p) {}

    __device__ __forceinline__ long long head(int g) const {  // row of q, out and lse
        return (long long)sequence * p.query_heads + head0 + g;
    }
    __device__ __forceinline__ int block_of(int token) const {
        return p.block_magic ? (int)__umulhi(token, p.block_magic) : token;
    }
    // Pieces of 16 bytes from the start of the cache to the row of `token`, which is in `block`.
    __device__ __forceinline__ long long row(int block, int token) const {
        const unsigned offset = token - block_of(token) * p.block_size;
        return (long long)block * p.stride_block + (long long)offset * p.stride_token +
               (long long)kv_head * p.stride_head;
    }

    __device__ __forceinline__ float slope(int g) const {
        return (FEATURES & ALIBI) && g < heads ? p.alibi[head0 + g] * LOG2_E : 0;
    }
    // From a product of q and k, times score_scale, to the exponent of its weight, base 2.
    __device__ __forceinline__ float score(float product, float slope, int token) const {
        if constexpr (FEATURES & SOFTCAP) product = p.softcap * hyperbolic_tangent(product);
        if constexpr (FEATURES & ALIBI) product = fmaf(slope, (float)(token - (span.tokens - 1)), product);
        return product;
    }
};

}  // namespace paged
