// combine.cuh: the results of a sequence's splits, weighed into one.
#pragma once
#include "slice.cuh"

namespace paged {

// grid (query heads, sequences), D threads. Sequences of one part have been written by paged_decode.
template <class Q, int D> __global__ void __launch_bounds__(D) paged_combine(const __grid_constant__ Params p) {
    const int d = threadIdx.x, parts = Span(p, blockIdx.y).parts;
    if (parts <= 1) return;
    const long long head = (long long)blockIdx.y * p.query_heads + blockIdx.x;
    const float* lse = p.part_lse + head * p.splits;
    const float* part = p.part_out + head * p.splits * D + d;
    float peak = NEG_INF, total = 0, value = 0;
    for (int s = 0; s < parts; s++) peak = fmaxf(peak, lse[s]);
    for (int s = 0; s < parts; s++) {
        const float weight = power_of_2(lse[s] - peak);
        total += weight;
        value = fmaf(weight, part[(long long)s * D], value);
    }
    from_float(value / total, ((Q*)p.out)[head * D + d]);
    if (p.lse && d == 0) p.lse[head] = (peak + log2f(total)) * LN_2;
}

}  // namespace paged
