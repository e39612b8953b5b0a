// stops.cpp: mistakes at which the shim must stop, and say which CUDA thread made them; 0 is none.
//
//     stops NUMBER
#include "simt.h"
#include <cstdlib>

static char source[64];
static char* shared() { return static_cast<char*>(simt::shared_memory()); }

static void none() {
    simt::copy_async(shared() + threadIdx.x * 16, source, 16, 0);
    simt::copy_commit();
    simt::copy_wait(0);
    __syncthreads();
    __shfl_xor_sync(~0u, 1, 1);
}
static void barrier_in_divergent_code() {
    if (threadIdx.x < 40) __syncthreads();
    else __syncthreads();
}
static void lanes_at_different_collectives() {
    if (threadIdx.x % 2) __syncwarp();
    else __shfl_xor_sync(~0u, 1, 1);
}
static void mask_without_the_caller() { __shfl_xor_sync(0xFFFFu, 1, 1); }
static void deadlock() {
    if (threadIdx.x == 5) __syncwarp();
    else __syncthreads();
}
static void unfinished_copy() {
    simt::copy_async(shared() + threadIdx.x * 16, source, 16, 0);
    simt::copy_commit();
}
static void copy_past_shared_memory() { simt::copy_async(shared() + 1024, source, 16, 0); }
static void misaligned_copy() { simt::copy_async(shared() + 8, source, 16, 0); }

int main(int argc, char** argv) {
    using Kernel = void (*)();
    constexpr Kernel kernels[] = {
        none,     barrier_in_divergent_code, lanes_at_different_collectives, mask_without_the_caller,
        deadlock, unfinished_copy,           copy_past_shared_memory,        misaligned_copy,
    };
    const int number = argc == 2 ? std::atoi(argv[1]) : -1;
    if (number < 0 || number > 7) return 2;
    simt::launch({2}, {64}, 1024, kernels[number]);
}
