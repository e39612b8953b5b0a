// alone.cuh: one row of prefill again, from nothing but the tokens that it sees.
//
// Rows share their tiles, and a weight of 0 times NaN is NaN: a number that is none in V of one query's token reaches
// the rows of the same tile that do not see it. To mask V for each row would cost every call; so a row whose result is
// NaN is computed once more, and stays NaN only if it is its own. That takes some ten times as long.
#pragma once
#include "device.cuh"

namespace paged {

// The bits that any lane of the warp has; after it, the lanes' writes are in order.
PAGED_FN unsigned any_bits(unsigned bits) {
    for (int step = 16; step; step /= 2) bits |= __shfl_xor_sync(~0u, bits, step);
    __syncwarp();
    return bits;
}

// One warp writes row r of its block. top: the row's largest score; factor: what the sum of weights times V is
// multiplied by.
template <class KV, class Q, int D, class Rows>
PAGED_FN void attend_alone(const Rows& rows, int r, float top, float factor) {
    constexpr int VEC = Pack<KV>::N, OUTS = (D + 31) / 32;
    const auto& p = rows.p;
    const long long to = rows.query_row(r);
    const int own = rows.position(r), lane = rows.lane;
    const float slope = rows.slope(r);
    float acc[OUTS] = {};
    for (int first = max(own - p.window + 1, 0); first <= own; first += 32) {
        const int token = first + lane;
        const long long at = rows.cache_row(min(token, own));
        float product = 0;
#pragma unroll 1
        for (int d = 0; d < D; d += VEC) {
            float key[VEC];
            Pack<KV>::unpack(((const uint4*)p.k)[at + d / VEC], key);
#pragma unroll
            for (int i = 0; i < VEC; i++) product = fmaf(to_float(((const Q*)p.q)[to * D + d + i]), key[i], product);
        }
        const float weight =
            token <= own ? power_of_2(rows.score(product * p.score_scale, slope, token, own) - top) : 0;
#pragma unroll 1
        for (int t = 0; t < min(32, own + 1 - first); t++) {
            const float w = __shfl_sync(~0u, weight, t);
            const KV* v = (const KV*)p.v + __shfl_sync(~0u, at, t) * VEC;
#pragma unroll
            for (int i = 0; i < OUTS; i++)
                if (D % 32 == 0 || i * 32 + lane < D) acc[i] = fmaf(w, to_float(v[i * 32 + lane]), acc[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < OUTS; i++)
        if (D % 32 == 0 || i * 32 + lane < D) from_float(acc[i] * factor, ((Q*)p.out)[to * D + i * 32 + lane]);
}

}  // namespace paged
