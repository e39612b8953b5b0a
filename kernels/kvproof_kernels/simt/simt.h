// simt.h: run an unmodified CUDA kernel on the host, one fiber per CUDA thread.
//
// Every synchronisation point suspends the fiber; the scheduler resumes a random runnable one, so a missing barrier
// shows up as a wrong or changing result. The runtime (simt.cpp) tells AddressSanitizer and ThreadSanitizer about its
// fibers; under ThreadSanitizer only barriers order memory, which makes it a race detector for shared and global
// memory.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

namespace simt {

struct Thread {  // what a CUDA thread can ask about itself
    dim3 thread_idx, block_idx, block_dim, grid_dim;
    unsigned lane;
};
extern Thread* self;  // null outside a launch

struct Place {  // a line of the kernel; as a default argument, the caller's
    int line;
    const char* file;
    Place(int line = __builtin_LINE(), const char* file = __builtin_FILE()) : line(line), file(file) {}
};

// Wait until every lane named by `mask` has arrived with the same `what` and `where`; the last to arrive runs `fn` over
// all payloads, indexed by lane. Only without an `fn` is memory ordered, as on a GPU: a shuffle or a matrix instruction
// is no barrier.
using WarpFn = void (*)(void* const* payload, unsigned mask);
void warp_collective(unsigned mask, void* payload, WarpFn fn, const char* what, Place where = Place());
void block_barrier(Place where);

void* shared_memory();  // this block's dynamic shared memory, NaN at block start
void copy_async(void* target, const void* source, unsigned bytes, unsigned zeros);
void copy_commit();
void copy_wait(unsigned groups_left);

void say_frames();  // the stack on stderr, as places in files for addr2line

// Run a kernel, a callable without arguments, for every thread of the grid; `seed` decides the order in which runnable
// threads and blocks are resumed. Aborts with a report on stderr at a fault.
using Entry = void (*)(const void* kernel);
void launch(dim3 grid, dim3 block, unsigned shared_bytes, Entry entry, const void* kernel, std::uint64_t seed);

template <class Kernel>
void launch(dim3 grid, dim3 block, unsigned shared_bytes, const Kernel& kernel, std::uint64_t seed = 0) {
    launch(grid, block, shared_bytes, [](const void* k) { (*static_cast<const Kernel*>(k))(); }, &kernel, seed);
}

template <class T> T shuffle(unsigned mask, T value, unsigned source, Place where) {
    struct Slot {
        T in, out;
        unsigned source;
    } slot{value, T{}, source & 31};
    auto exchange = [](void* const* payload, unsigned mask) {
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1) {
                Slot& s = *static_cast<Slot*>(payload[i]);
                if (mask >> s.source & 1) s.out = static_cast<Slot*>(payload[s.source])->in;
                else std::memset(&s.out, 0xFF, sizeof(T));  // CUDA leaves it undefined
            }
    };
    warp_collective(mask, &slot, exchange, "shuffle", where);
    return slot.out;
}

}  // namespace simt

#define threadIdx (simt::self->thread_idx)
#define blockIdx (simt::self->block_idx)
#define blockDim (simt::self->block_dim)
#define gridDim (simt::self->grid_dim)
inline void __syncthreads(simt::Place where = simt::Place()) { simt::block_barrier(where); }
inline void __syncwarp(unsigned mask = ~0u, simt::Place where = simt::Place()) {
    simt::warp_collective(mask, nullptr, nullptr, "syncwarp", where);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int lane_mask, simt::Place where = simt::Place()) {
    return simt::shuffle(mask, v, simt::self->lane ^ lane_mask, where);
}
template <class T> T __shfl_sync(unsigned mask, T v, int lane, simt::Place where = simt::Place()) {
    return simt::shuffle(mask, v, lane, where);
}
template <class T> T __ldg(const T* p) { return *p; }
inline unsigned __umulhi(unsigned a, unsigned b) { return std::uint64_t(a) * b >> 32; }
inline float __uint_as_float(unsigned u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
inline unsigned __float_as_uint(float f) {
    unsigned u;
    std::memcpy(&u, &f, 4);
    return u;
}
using std::exp2f, std::fmaf, std::fmaxf, std::log2f;
template <class T> T min(T a, T b) { return a < b ? a : b; }
template <class T> T max(T a, T b) { return a > b ? a : b; }
