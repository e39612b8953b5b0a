// lanes.cuh: scores and sums by fused multiply-adds, for one or a few query heads a KV head.
//
// LANES lanes share a token. Each copies its own 16-byte pieces of K and V through a ring and is the
// only one to read them, so nothing in the loop waits for another lane but the sum of the scores.
// Every group of LANES lanes has its own softmax.
#pragma once
#include "slice.cuh"

namespace paged {

template <class KV, class Q_, int D_, int G, int WARPS, int STAGES_, int FEATURES> struct Lanes
    : Slice<G, WARPS, FEATURES> {
    using Q = Q_;
    static constexpr int D = D_, STAGES = STAGES_;
    static constexpr int VEC = 16 / sizeof(KV), CHUNKS = D / VEC;  // elements a piece, pieces a row
    static constexpr int LANES = min_of(CHUNKS & -CHUNKS, 32);     // a power of two that divides the pieces
    static constexpr int PIECES = CHUNKS / LANES;                  // of a row, a lane
    static constexpr int ELEMS = PIECES * VEC;
    static constexpr int ROWS = 32 / LANES;                              // tokens a warp copies at once
    static constexpr int COPIES = PIECES < 3 ? 4 / PIECES : 6 / PIECES;  // rows a lane has a part in, a step
    static constexpr int TILE = ROWS * COPIES;                           // tokens a warp and step
    static constexpr int HALF = COPIES * PIECES * 32;                    // pieces of K (or V) a stage
    static constexpr int SCRATCH_BYTES = WARPS * STAGES * 2 * HALF * 16;
    static constexpr int MIN_BLOCKS = 1;

    using Base = Slice<G, WARPS, FEATURES>;
    using Base::p, Base::lane, Base::warp, Base::heads;
    const int part = lane % LANES;
    uint4* const ring = (uint4*)Base::scratch + warp * STAGES * 2 * HALF + lane;
    float q[G][ELEMS], acc[G][ELEMS], top[G], sum[G], slope[G];

    __device__ __forceinline__ Lanes(const Params& p) : Base(p) {}
    __device__ __forceinline__ int chunk(int piece) const { return piece * LANES + part; }
    __device__ __forceinline__ int dim(int i) const { return chunk(i / VEC) * VEC + i % VEC; }
    __device__ __forceinline__ int copy_row(int i) const { return i * ROWS + lane / LANES; }

    __device__ __forceinline__ void load_query() {
#pragma unroll
        for (int g = 0; g < G; g++) {
            const Q* source = (const Q*)p.q + Base::head(min(g, heads - 1)) * D;
#pragma unroll
            for (int i = 0; i < ELEMS; i++) {
                q[g][i] = to_float(source[dim(i)]) * p.score_scale;
                acc[g][i] = 0;
            }
            top[g] = NEG_INF;
            sum[g] = 0;
            slope[g] = Base::slope(g);
        }
    }

    template <class Rows> __device__ __forceinline__ void fetch(int stage, int first, int end, const Rows& row) const {
#pragma unroll
        for (int u = 0; u < COPIES; u++) {
            const bool valid = first + copy_row(u) < end;
            const long long from = row(u);
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                uint4* slot = ring + stage * 2 * HALF + (u * PIECES + j) * 32;
                copy_16(slot, (const uint4*)p.k + from + chunk(j), valid);
                copy_16(slot + HALF, (const uint4*)p.v + from + chunk(j), valid);
            }
        }
    }

    __device__ __forceinline__ void attend(int stage, int first, int end) {
        const uint4* slot = ring + stage * 2 * HALF;
        float score[COPIES][G] = {};
#pragma unroll
        for (int u = 0; u < COPIES; u++)
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                float k[VEC];
                Pack<KV>::unpack(slot[(u * PIECES + j) * 32], k);
#pragma unroll
                for (int g = 0; g < G; g++)
#pragma unroll
                    for (int i = 0; i < VEC; i++) score[u][g] = fmaf(q[g][j * VEC + i], k[i], score[u][g]);
            }
#pragma unroll
        for (int u = 0; u < COPIES; u++)
#pragma unroll
            for (int g = 0; g < G; g++) {
#pragma unroll
                for (int step = LANES / 2; step; step /= 2) score[u][g] += __shfl_xor_sync(~0u, score[u][g], step);
                const int token = first + copy_row(u);
                score[u][g] = token < end ? Base::score(score[u][g], slope[g], token) : NEG_INF;
            }
#pragma unroll
        for (int g = 0; g < G; g++) {
            float peak = top[g];
#pragma unroll
            for (int u = 0; u < COPIES; u++) peak = fmaxf(peak, score[u][g]);
            const float shrink = power_of_2(top[g] - peak);
            top[g] = peak;
            sum[g] *= shrink;
#pragma unroll
            for (int i = 0; i < ELEMS; i++) acc[g][i] *= shrink;
#pragma unroll
            for (int u = 0; u < COPIES; u++) {
                score[u][g] = power_of_2(score[u][g] - peak);
                sum[g] += score[u][g];
            }
        }
#pragma unroll
        for (int u = 0; u < COPIES; u++)
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                float v[VEC];
                Pack<KV>::unpack(slot[HALF + (u * PIECES + j) * 32], v);
#pragma unroll
                for (int g = 0; g < G; g++)
#pragma unroll
                    for (int i = 0; i < VEC; i++) acc[g][j * VEC + i] = fmaf(score[u][g], v[i], acc[g][j * VEC + i]);
            }
    }

    // Merge the softmaxes of the warp's lanes.
    __device__ __forceinline__ void reduce() {
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
#pragma unroll
            for (int g = 0; g < G; g++) {
                const float peak = fmaxf(top[g], __shfl_xor_sync(~0u, top[g], step));
                const float shrink = power_of_2(top[g] - peak);
                top[g] = peak;
                sum[g] *= shrink;
                sum[g] += __shfl_xor_sync(~0u, sum[g], step);
#pragma unroll
                for (int i = 0; i < ELEMS; i++) {
                    acc[g][i] *= shrink;
                    acc[g][i] += __shfl_xor_sync(~0u, acc[g][i], step);
                }
            }
    }
    // Leave the warp's result in [G], [G], [G][D].
    __device__ __forceinline__ void deposit(float* tops, float* sums, float* accs) const {
        if (lane >= LANES) return;
#pragma unroll
        for (int g = 0; g < G; g++) {
            if (lane == 0) tops[g] = top[g], sums[g] = sum[g];
#pragma unroll
            for (int i = 0; i < ELEMS; i++) accs[g * D + dim(i)] = acc[g][i];
        }
    }
};

}  // namespace paged
