// How long one look-up takes: a chain of loads, each at the address that the one before it gave.
#pragma once

namespace probe {

template <bool Shared> __global__ void chain(const int* next, int entries, int steps, long long* cycles, int* last) {
    extern __shared__ int staged[];
    if (Shared)
        for (int i = 0; i < entries; ++i) staged[i] = next[i];
    int at = 0;
    const long long begin = clock64();
    for (int i = 0; i < steps; ++i) {
        if (Shared) at = ((volatile int*)staged)[at];
        else  // past L1, which would answer for a table that many threads share
            asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(at) : "l"(next + at));
    }
    *cycles = clock64() - begin;
    *last = at;  // or the loop would be left out
}

}  // namespace probe
