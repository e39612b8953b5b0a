// device.cuh: everything in the kernels that is spelt differently on a GPU and under the host shim.
// No CUDA header is needed: NVRTC, nvcc and g++ compile the kernels from these files alone.
#pragma once

#if defined(__CUDACC__)
#define SIMT_HOST 0
#else
#define SIMT_HOST 1
#include "simt.h"
#endif

namespace paged {

struct f16 {
    static constexpr bool brain = false;
    unsigned short bits;
};
struct bf16 {
    static constexpr bool brain = true;
    unsigned short bits;
};
struct e4m3 {
    unsigned char bits;
};

#define PAGED_FN static __device__ __forceinline__

__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int power_below(int n) { return n < 2 ? n : 2 * power_below(n / 2); }  // or at n

template <bool FIRST, class A, class B> struct Choose {
    using Type = A;
};
template <class A, class B> struct Choose<false, A, B> {
    using Type = B;
};

// ---- shared memory, asynchronous 16-byte copies -----------------------------------------------

PAGED_FN char* dynamic_shared() {
#if SIMT_HOST
    return static_cast<char*>(simt::shared_memory());
#else
    extern __shared__ __align__(128) char shared[];
    return shared;
#endif
}

// Copy 16 bytes from global to shared memory, or write zeros and leave `src` unread.
PAGED_FN void copy_16(void* dst, const void* src, bool valid) {
#if SIMT_HOST
    simt::copy_async(dst, src, valid ? 16 : 0, valid ? 0 : 16);
#else
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(dst)),
        "l"(src), "r"(valid ? 16 : 0)
        : "memory");
#endif
}
PAGED_FN void copy_commit() {
#if SIMT_HOST
    simt::copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int GROUPS_LEFT> PAGED_FN void copy_wait() {
#if SIMT_HOST
    simt::copy_wait(GROUPS_LEFT);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_LEFT) : "memory");
#endif
}

// ---- tensor cores: one warp, all lanes ----------------------------------------------------------

// Four 8x8 matrices of 2-byte elements; lane 8m+r points at row r of matrix m.  Each lane receives,
// of every matrix, two neighbours in row lane/4 from column lane%4*2 on (TRANS: of the transpose).
template <bool TRANS> PAGED_FN void load_matrices(unsigned (&out)[4], const void* row) {
#if SIMT_HOST
    struct Lane {
        unsigned short row[8];
        unsigned* out;
    } mine{{}, out};
    for (int i = 0; i < 8; i++) mine.row[i] = ((const unsigned short*)row)[i];  // by this lane: it may be too early
    simt::warp_collective(
        ~0u, &mine,
        [](void* const* lanes, unsigned) {
            for (int lane = 0; lane < 32; lane++)
                for (int m = 0; m < 4; m++) {
                    unsigned short pair[2];
                    for (int i = 0; i < 2; i++) {
                        const int r = TRANS ? lane % 4 * 2 + i : lane / 4, c = TRANS ? lane / 4 : lane % 4 * 2 + i;
                        pair[i] = ((Lane*)lanes[m * 8 + r])->row[c];
                    }
                    ((Lane*)lanes[lane])->out[m] = pair[0] | (unsigned)pair[1] << 16;
                }
        },
        TRANS ? "ldmatrix.trans" : "ldmatrix", 0);
#else
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if constexpr (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
#endif
}

// ---- number formats ----------------------------------------------------------------------------

PAGED_FN float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
PAGED_FN float to_float(float x) { return x; }
PAGED_FN float to_float(f16 x) {
#if SIMT_HOST
    _Float16 h;
    std::memcpy(&h, &x, 2);
    return h;
#else
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
#endif
}
PAGED_FN float to_float(e4m3 x) {  // exact: the exponent moves to float's bias by a multiplication
    const float f = __uint_as_float((x.bits & 0x80u) << 24 | (x.bits & 0x7Fu) << 20) * __uint_as_float(0x7B800000u);
    return (x.bits & 0x7F) == 0x7F ? __uint_as_float(0x7FC00000u) : f;
}

PAGED_FN void from_float(float f, float& x) { x = f; }
PAGED_FN void from_float(float f, bf16& x) {  // to nearest even; NaN stays NaN
    const unsigned u = __float_as_uint(f);
    x.bits = (unsigned short)(f != f ? 0x7FC0u : (u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}
PAGED_FN void from_float(float f, f16& x) {
#if SIMT_HOST
    const _Float16 h = _Float16(f);
    std::memcpy(&x, &h, 2);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x.bits) : "f"(f));
#endif
}

PAGED_FN float power_of_2(float x) {
#if SIMT_HOST
    return exp2f(x);
#else
    float y;  // two units in the last place; exp2f would look after results below 2^-126, which count for nothing here
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Within 4e-7. tanhf is nearer where x is small, at twice the instructions.
PAGED_FN float hyperbolic_tangent(float x) {
    const float e = power_of_2(x * 2.88539008f);  // e^2x
#if SIMT_HOST
    return 1 - 2 / (1 + e);
#else
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + e));
    return 1 - 2 * inverse;
#endif
}

PAGED_FN unsigned pack(bf16 lo, bf16 hi) { return lo.bits | (unsigned)hi.bits << 16; }
PAGED_FN unsigned pack(f16 lo, f16 hi) { return lo.bits | (unsigned)hi.bits << 16; }
template <class T> PAGED_FN unsigned pack_floats(float lo, float hi) {
    T a, b;
    from_float(lo, a);
    from_float(hi, b);
    return pack(a, b);
}

template <class T> PAGED_FN float low_float(unsigned pair) { return to_float(T{(unsigned short)pair}); }
template <class T> PAGED_FN float high_float(unsigned pair) { return to_float(T{(unsigned short)(pair >> 16)}); }

// Bytes 0, 2, 1, 3 of a word.
PAGED_FN unsigned deal_bytes(unsigned word) {
#if SIMT_HOST
    return (word & 0xFF0000FFu) | (word & 0xFF00u) << 8 | (word >> 8 & 0xFF00u);
#else
    return __byte_perm(word, 0, 0x3120);
#endif
}

// Two e4m3, the bytes FROM and FROM + 1 of a word, as two f16; exact.
template <int FROM> PAGED_FN unsigned e4m3_halves(unsigned word) {
    const unsigned short pair = (unsigned short)(word >> 8 * FROM);
#if SIMT_HOST
    return pack_floats<f16>(to_float(e4m3{(unsigned char)pair}), to_float(e4m3{(unsigned char)(pair >> 8)}));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
    return halves;
#else  // move exponent and mantissa to f16's places, and the exponent to its bias by a multiplication by 2^8
    const unsigned apart = __byte_perm(word, 0, FROM ? 0x3424 : 0x1404), magnitude = apart >> 1 & 0x3F803F80u;
    unsigned halves;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(halves) : "r"((apart & 0x80008000u) | magnitude), "r"(0x5C005C00u));
    return halves | ((magnitude + 0x00800080u) >> 1 & 0x20002000u);  // what looks like 480 is NaN
#endif
}
PAGED_FN unsigned halves_low(unsigned word) { return e4m3_halves<0>(word); }
PAGED_FN unsigned halves_high(unsigned word) { return e4m3_halves<2>(word); }

// c (16x8, float) += a (16x16) b (16x8), in the fragments of mma.m16n8k16: with row = lane/4 and
// column = lane%4*2, a lane holds c[row][column..], c[row+8][column..]; a[row][column..],
// a[row+8][column..], a[row][column+8..], a[row+8][column+8..]; b[column..][row], b[column+8..][row].
template <class T> PAGED_FN void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if SIMT_HOST
    struct Lane {
        float* c;
        const unsigned* a;
        unsigned b[2];
    } mine{c, a, {b0, b1}};
    simt::warp_collective(
        ~0u, &mine,
        [](void* const* lanes, unsigned) {
            float a[16][16], b[16][8];
            auto half = [](unsigned word, int i) { return to_float(T{(unsigned short)(word >> 16 * i)}); };
            for (int lane = 0; lane < 32; lane++)
                for (int i = 0; i < 8; i++) {
                    const Lane& l = *(Lane*)lanes[lane];
                    const int word = i / 2, row = lane / 4, column = lane % 4 * 2 + i % 2;
                    a[row + word % 2 * 8][column + word / 2 * 8] = half(l.a[word], i % 2);
                    if (word < 2) b[column + word * 8][row] = half(l.b[word], i % 2);
                }
            for (int lane = 0; lane < 32; lane++)
                for (int i = 0; i < 4; i++) {
                    float& c = ((Lane*)lanes[lane])->c[i];
                    for (int k = 0; k < 16; k++) c += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
                }
        },
        "mma", 0);
#else
    if constexpr (sizeof(T) == 2 && T::brain)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// 16 bytes of T as floats.
template <class T> struct Pack {
    static constexpr int N = 16 / sizeof(T);
    PAGED_FN void unpack(const uint4& v, float* out) {
        const unsigned word[4] = {v.x, v.y, v.z, v.w};
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = __uint_as_float(word[i]);
        } else if constexpr (sizeof(T) == 2) {
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = to_float(T{(unsigned short)(word[i / 2] >> 16 * (i % 2))});
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const unsigned pair = i % 2 ? halves_high(word[i / 2]) : halves_low(word[i / 2]);
                out[2 * i] = low_float<f16>(pair);
                out[2 * i + 1] = high_float<f16>(pair);
            }
        }
    }
};

}  // namespace paged
