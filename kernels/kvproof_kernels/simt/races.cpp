// races.cpp: what the shim must and must not call a race; races 1 to 4 are some, 5 and 6 are none.
//
//     races NUMBER
#include "simt.h"
#include <cstdlib>

float out[256];  // visible elsewhere, or the compiler drops the stores
static float* shared() { return static_cast<float*>(simt::shared_memory()); }

static void two_threads_of_a_block() { out[threadIdx.x / 2] = threadIdx.x; }
static void two_blocks() {
    __syncthreads();
    out[threadIdx.x] = blockIdx.x;
}
static void another_warps_value_after_syncwarp() {
    shared()[threadIdx.x] = threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = shared()[(threadIdx.x + 32) % 128];
}
static void a_shuffle_is_no_barrier() {
    shared()[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1) * shared()[threadIdx.x ^ 1];
}
static void a_neighbours_value_after_syncwarp() {
    shared()[threadIdx.x] = threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = shared()[threadIdx.x ^ 1];
}
static void any_value_after_syncthreads() {
    shared()[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = shared()[(threadIdx.x + 33) % 128];
}

int main(int argc, char** argv) {
    using Kernel = void (*)();
    constexpr Kernel kernels[] = {
        two_threads_of_a_block,
        two_blocks,
        another_warps_value_after_syncwarp,
        a_shuffle_is_no_barrier,
        a_neighbours_value_after_syncwarp,
        any_value_after_syncthreads,
    };
    const int number = argc == 2 ? std::atoi(argv[1]) : 0;
    if (number < 1 || number > 6) return 2;
    simt::launch({number == 2 ? 2u : 1u}, {128}, 512, kernels[number - 1]);
}
