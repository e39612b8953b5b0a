// cache.cuh: writes into a paged KV cache: new tokens into their slots, and copies of whole blocks.
#pragma once
#include "device.cuh"

namespace paged {

struct WriteParams {
    const void* k;  // [tokens, kv heads, head_dim], contiguous
    const void* v;
    void* k_cache;  // K of (block, token, kv head): k_cache + block*stride_block + ...
    void* v_cache;
    const long long* slots;  // [tokens], block*block_size + offset; negative ones are skipped
    long long stride_block, stride_token, stride_head;  // of the caches, in elements
    int tokens, block_size, kv_heads, head_dim;
    float k_scale, v_scale;  // what is stored is divided by them, when the formats differ
};

// One cache of copy_blocks.
struct CopyCache {
    char* memory;
    long long stride, bytes;  // from one block to the next, and of a block
};
struct CopyPair {
    long long source, target;
};
constexpr int MOST_CACHES = 128;  // of a launch: 64 layers; parameters may have 4 KiB
struct CopyParams {
    CopyCache caches[MOST_CACHES];
    const CopyPair* pairs;
    int cache_count, pair_count;
    int blocks_per_cache;  // blocks of threads; any number is right
};

constexpr int CACHE_THREADS = 128;

// To nearest even; what is too large becomes the largest number, as fp8 caches want; NaN stays NaN.
PAGED_FN void from_float(float f, e4m3& x) {
    const unsigned sign = __float_as_uint(f) >> 24 & 0x80u;
    const float size = fminf(fabsf(f), 448.0f);
    unsigned bits;
    if (f != f) {
        bits = 0x7F;
    } else if (size < 0.015625f) {  // below 2^-6 the step is 2^-9, which is the last bit of a sum near 2^14
        bits = __float_as_uint(size + 16384.0f) - __float_as_uint(16384.0f);
    } else {
        const unsigned u = __float_as_uint(size);
        bits = ((u + 0x7FFFFu + (u >> 20 & 1)) >> 20) - (120u << 3);
    }
    x.bits = (unsigned char)(sign | bits);
}

template <class A, class B> constexpr bool SAME = false;
template <class A> constexpr bool SAME<A, A> = true;

PAGED_FN uint4 packed(const e4m3 (&x)[16]) {
    unsigned word[4] = {};
#pragma unroll
    for (int i = 0; i < 16; i++) word[i / 4] |= (unsigned)x[i].bits << 8 * (i % 4);
    return {word[0], word[1], word[2], word[3]};
}

// One token's row of a KV head, in pieces of PIECE elements: 16 bytes of the cache, or 1 element where nothing is
// aligned.
template <class KV, class Source, int PIECE> PAGED_FN void store_piece(KV* target, const Source* source, float scale) {
    if constexpr (SAME<KV, Source> && PIECE > 1) {
        *(uint4*)target = *(const uint4*)source;
    } else if constexpr (SAME<KV, Source>) {
        *target = *source;
    } else {
        KV piece[PIECE];
#pragma unroll
        for (int i = 0; i < PIECE; i++) from_float(to_float(source[i]) / scale, piece[i]);
        if constexpr (PIECE > 1) *(uint4*)target = packed(piece);
        else *target = piece[0];
    }
}

template <class KV, class Source, int PIECE> PAGED_FN void store_token(const WriteParams& p, long long slot) {
    const long long block = slot / p.block_size, offset = slot % p.block_size;
    const long long to = block * p.stride_block + offset * p.stride_token;
    const long long from = (long long)blockIdx.x * p.kv_heads * p.head_dim;
    const int pieces = p.head_dim / PIECE;
    for (int item = threadIdx.x; item < p.kv_heads * pieces; item += CACHE_THREADS) {
        const int head = item / pieces, d = item % pieces * PIECE;
        const long long target = to + head * p.stride_head + d, source = from + head * p.head_dim + d;
        store_piece<KV, Source, PIECE>((KV*)p.k_cache + target, (const Source*)p.k + source, p.k_scale);
        store_piece<KV, Source, PIECE>((KV*)p.v_cache + target, (const Source*)p.v + source, p.v_scale);
    }
}

// Grid (tokens): store K and V of new tokens into their slots.
template <class KV, class Source> __global__ void __launch_bounds__(CACHE_THREADS)
    paged_write(const __grid_constant__ WriteParams p) {
    const long long slot = __ldg(p.slots + blockIdx.x);
    if (slot < 0) return;
    constexpr int PIECE = 16 / sizeof(KV);
    const unsigned long long addresses = (unsigned long long)p.k_cache | (unsigned long long)p.v_cache |
                                         (unsigned long long)p.k | (unsigned long long)p.v;
    const long long steps = p.stride_block | p.stride_token | p.stride_head | p.head_dim;
    if (addresses % 16 == 0 && steps % PIECE == 0) store_token<KV, Source, PIECE>(p, slot);
    else store_token<KV, Source, 1>(p, slot);
}

// All pairs in order: a source may be an earlier pair's target, so a thread carries its piece through all of them.
template <class Piece> PAGED_FN void copy_pieces(const CopyParams& p, const CopyCache& cache) {
    const long long pieces = cache.bytes / (long long)sizeof(Piece), step = (long long)gridDim.x * CACHE_THREADS;
    for (long long i = (long long)blockIdx.x * CACHE_THREADS + threadIdx.x; i < pieces; i += step)
        for (int pair = 0; pair < p.pair_count; pair++) {
            const char* source = cache.memory + p.pairs[pair].source * cache.stride;
            char* target = cache.memory + p.pairs[pair].target * cache.stride;
            ((Piece*)target)[i] = ((const Piece*)source)[i];
        }
}

// Grid (blocks_per_cache, cache_count): copy whole blocks within each cache.
static __global__ void __launch_bounds__(CACHE_THREADS) paged_copy_blocks(const __grid_constant__ CopyParams p) {
    const CopyCache& cache = p.caches[blockIdx.y];
    if (((unsigned long long)cache.memory | cache.stride | cache.bytes) % 16 == 0) copy_pieces<uint4>(p, cache);
    else copy_pieces<char>(p, cache);
}

}  // namespace paged
