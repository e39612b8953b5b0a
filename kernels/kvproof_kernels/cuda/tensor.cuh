// tensor.cuh: scores and sums on the tensor cores, for caches of 2-byte and 1-byte elements.
//
// Up to 16 query heads are the rows of one matrix, 16 tokens are a step. Each warp has its own ring and
// softmax. Rows in the ring have an odd number of 16-byte pieces, or are swizzled, so that no
// ldmatrix meets a bank twice.
//
// e4m3 becomes f16, exactly, in registers. ldmatrix moves its elements in pairs, so the pieces of a
// product are reordered: of K a lane holds the dims 4t..4t+3 where the instruction has 2t, 2t+1, 2t+8,
// 2t+9, and q is laid out alike; of V even and odd dims land in two tiles, and `dim` says so at the end.
#pragma once
#include "slice.cuh"

namespace paged {

template <class KV, class Q_, int D_, int WARPS, int STAGES_, int FEATURES> struct Tensor : Slice<16, WARPS, FEATURES> {
    using Q = Q_;
    static constexpr bool BYTES = sizeof(KV) == 1;
    using M = typename Choose<BYTES, f16, KV>::Type;  // what is multiplied
    static constexpr int D = D_, STAGES = STAGES_;
    static constexpr int TILE = 16;                                 // tokens a warp and step
    static constexpr int CHUNKS = D * sizeof(KV) / 16;              // 16-byte pieces of a row
    static constexpr int PITCH = CHUNKS % 8 ? CHUNKS | 1 : CHUNKS;  // and their distance in the ring
    static constexpr int HALF = TILE * PITCH;                       // pieces of K (or V) a stage
    static constexpr bool SHARE_QUERY = D > 192;                    // q in shared memory: registers run out
    static constexpr int QUERY_PIECES = SHARE_QUERY ? D / 16 * 32 : 0;
    static constexpr int SCRATCH_BYTES = (QUERY_PIECES + WARPS * STAGES * 2 * HALF) * 16;
    static constexpr int MIN_BLOCKS = D < 128 || (BYTES && D == 128) ? 3 : D == 128 ? 2 : 1;  // an SM, by registers
    // A row's pieces as two powers of two (80 elements: 8 + 2), each copied by as many lanes a row.
    static constexpr int WIDE = power_below(CHUNKS), REST = CHUNKS - WIDE;
    static constexpr int WIDE_COPIES = TILE * WIDE / 32, COPIES = WIDE_COPIES + (TILE * REST + 31) / 32;
    static constexpr int REST_LANES = max_of(REST, 1);
    static_assert(D % 16 == 0 && WIDE <= 32 && (REST & (REST - 1)) == 0);

    using Base = Slice<16, WARPS, FEATURES>;
    using Base::p, Base::lane, Base::warp, Base::heads;
    uint4* const query = (uint4*)Base::scratch;  // [D / 16][32 lanes]
    uint4* const ring = query + QUERY_PIECES + warp * STAGES * 2 * HALF;
    unsigned q[SHARE_QUERY ? 1 : D / 16][4];
    float acc[D / 8][4];
    float top[2], sum[2], slope[2], scale[2];  // of rows lane/4 and lane/4 + 8

    __device__ __forceinline__ Tensor(const Params& p) : Base(p) {}
    __device__ __forceinline__ static int place(int row, int chunk) {
        return row * PITCH + (CHUNKS % 8 ? chunk : chunk ^ (row & 7));
    }
    __device__ __forceinline__ int copy_row(int i) const {
        return i < WIDE_COPIES ? i * (32 / WIDE) + lane / WIDE
                               : (i - WIDE_COPIES) * (32 / REST_LANES) + lane / REST_LANES;
    }
    __device__ __forceinline__ int copy_chunk(int i) const {
        return i < WIDE_COPIES ? lane % WIDE : WIDE + lane % REST_LANES;
    }
    // The head dimension of q[.][2 * half], and of acc[tile][e].
    __device__ __forceinline__ int query_dim(int step, int half) const {
        return step * 16 + (BYTES ? lane % 4 * 4 + half * 2 : lane % 4 * 2 + half * 8);
    }
    __device__ __forceinline__ int dim(int tile, int e) const {
        return BYTES ? tile / 2 * 16 + (lane % 4 * 2 + e) * 2 + tile % 2 : tile * 8 + lane % 4 * 2 + e;
    }

    __device__ __forceinline__ void load_query() {
        unsigned all[D / 16][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int g = lane / 4 + r * 8;
            const unsigned* row = (const unsigned*)p.q + Base::head(g) * (D / 2);
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                all[i / 2][i % 2 * 2 + r] = g < heads ? row[query_dim(i / 2, i % 2) / 2] : 0;
            scale[r] = p.score_scale;
            if constexpr (BYTES) scale[r] *= query_to_f16(all, r);
            top[r] = NEG_INF;
            sum[r] = 0;
            slope[r] = Base::slope(g);
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            if constexpr (!SHARE_QUERY)
                for (int j = 0; j < 4; j++) q[i][j] = all[i][j];
            else if (i % WARPS == warp) query[i * 32 + lane] = {all[i][0], all[i][1], all[i][2], all[i][3]};
        }
        if constexpr (SHARE_QUERY) __syncthreads();
#pragma unroll
        for (int i = 0; i < D / 8 * 4; i++) acc[i / 4][i % 4] = 0;
    }
    // Turn a row of q into f16, times the power of two that brings its largest element near f16's upper
    // end, so that none overflows and none that counts is lost. Returns the inverse of that power.
    // (Exponents are biased by 127; the largest element's becomes 13.)
    __device__ __forceinline__ static float query_to_f16(unsigned (&all)[D / 16][4], int r) {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const unsigned pair = all[i / 2][i % 2 * 2 + r];
            largest = fmaxf(largest, fmaxf(fabsf(low_float<Q>(pair)), fabsf(high_float<Q>(pair))));
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        const unsigned exponent = max(__float_as_uint(largest) >> 23, 20u);  // the powers stay finite
        const float up = __uint_as_float((127 + 127 + 13 - exponent) << 23);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            unsigned& pair = all[i / 2][i % 2 * 2 + r];
            pair = pack_floats<M>(low_float<Q>(pair) * up, high_float<Q>(pair) * up);
        }
        return __uint_as_float((exponent - 13) << 23);
    }
    __device__ __forceinline__ void query_step(unsigned (&a)[4], int i) const {
        if constexpr (SHARE_QUERY) {
            const uint4 piece = query[i * 32 + lane];
            a[0] = piece.x, a[1] = piece.y, a[2] = piece.z, a[3] = piece.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] = q[i][j];
        }
    }

    template <class Rows> __device__ __forceinline__ void fetch(int stage, int first, int end, const Rows& row) const {
        __syncwarp();  // every lane has read what this overwrites
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int r = copy_row(i), chunk = copy_chunk(i);
            const bool valid = first + r < end;
            const long long from = row(i) + chunk;
            uint4* slot = ring + stage * 2 * HALF + place(r, chunk);
            if (i >= WIDE_COPIES && TILE * REST < 32 && r >= TILE) continue;  // half a copy is left
            copy_16(slot, (const uint4*)p.k + from, valid);
            copy_16(slot + HALF, (const uint4*)p.v + from, valid);
        }
    }

    __device__ __forceinline__ void attend(int stage, int first, int end) {
        const uint4* k = ring + stage * 2 * HALF;
        const uint4* v = k + HALF;
        float score[2][4] = {};  // tokens 0-7 and 8-15
        __syncwarp();            // every lane's copies have landed
#pragma unroll
        for (int i = 0; i < CHUNKS; i += 2) {
            unsigned a[4], b[4];  // tokens 0-7: pieces i, i+1; tokens 8-15: the same
            load_matrices<false>(b, k + place(lane % 8 + lane / 16 * 8, min(i + lane / 8 % 2, CHUNKS - 1)));
            if constexpr (BYTES) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if (i + j == CHUNKS) break;
                    query_step(a, i + j);
                    multiply_add<M>(score[0], a, halves_low(b[j]), halves_high(b[j]));
                    multiply_add<M>(score[1], a, halves_low(b[2 + j]), halves_high(b[2 + j]));
                }
            } else {
                query_step(a, i / 2);
                multiply_add<M>(score[0], a, b[0], b[1]);
                multiply_add<M>(score[1], a, b[2], b[3]);
            }
        }
        unsigned weights[4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float peak = top[r];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float& s = score[i / 2][r * 2 + i % 2];
                const int token = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
                s = token < end ? Base::score(s * scale[r], slope[r], token) : NEG_INF;
                peak = fmaxf(peak, s);
            }
            peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
            peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
            const float shrink = power_of_2(top[r] - peak);
            top[r] = peak;
            sum[r] *= shrink;
#pragma unroll
            for (int i = 0; i < D / 8; i++) acc[i][r * 2] *= shrink, acc[i][r * 2 + 1] *= shrink;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float a = power_of_2(score[j][r * 2] - peak), b = power_of_2(score[j][r * 2 + 1] - peak);
                sum[r] += a + b;
                weights[j * 2 + r] = pack_floats<M>(a, b);
            }
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i += 2) {
            unsigned b[4];  // piece i: tokens 0-7, 8-15; piece i+1: the same
            load_matrices<true>(b, v + place(lane % 16, min(i + lane / 16, CHUNKS - 1)));
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (i + j == CHUNKS) break;
                if constexpr (BYTES) {
                    const unsigned early = deal_bytes(b[2 * j]), late = deal_bytes(b[2 * j + 1]);
                    multiply_add<M>(acc[(i + j) * 2], weights, halves_low(early), halves_low(late));
                    multiply_add<M>(acc[(i + j) * 2 + 1], weights, halves_high(early), halves_high(late));
                } else {
                    multiply_add<M>(acc[i + j], weights, b[2 * j], b[2 * j + 1]);
                }
            }
        }
    }

    // Merge the softmaxes of the warp's lanes.
    __device__ __forceinline__ void reduce() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        }
    }
    // Leave the warp's result in [16], [16], [16][D].
    __device__ __forceinline__ void deposit(float* tops, float* sums, float* accs) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int g = lane / 4 + r * 8;
            if (lane % 4 == 0) tops[g] = top[r], sums[g] = sum[r];
#pragma unroll
            for (int i = 0; i < D / 8 * 2; i++) accs[g * D + dim(i / 2, i % 2)] = acc[i / 2][r * 2 + i % 2];
        }
    }
};

}  // namespace paged
