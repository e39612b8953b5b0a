// vectors.h: vectors of W floats, and how stored elements become floats, for the instruction set that
// the compiler was told to use. Everything but the loads is spelt in the compiler's own vector type.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))

#if defined(__AVX512BW__)
constexpr int W = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int W = 8, REGISTERS = 16;
#else
constexpr int W = 4, REGISTERS = 16;
#endif
constexpr int CHUNK = 2 * W;  // elements of a row that are loaded at once

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
struct Pair {
    vf a, b;
};

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
struct e4m3 {
    uint8_t bits;
};

template <class F, int... I> INLINE void unroll(F&& f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F> INLINE void unroll(F&& f) { unroll(f, std::make_integer_sequence<int, N>{}); }

INLINE vf splat(float x) { return vf{} + x; }
template <class V, class U> INLINE V bits_as(U x) {
    V v;
    static_assert(sizeof v == sizeof x);
    std::memcpy(&v, &x, sizeof v);
    return v;
}
template <class V> INLINE V load_as(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

// ---- lanes ----------------------------------------------------------------------------------------

template <int... I> INLINE vf pick(vf a, vf b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, I...);
#else
    return __builtin_shuffle(a, b, vi{I...});
#endif
}
template <int H, int... I> INLINE vf fold(vf a, vf b, std::integer_sequence<int, I...>) {
    return pick<(I & H ? W + I : I)...>(a, b) + pick<(I & H ? W + (I ^ H) : I ^ H)...>(a, b);
}
template <int H, int... I> INLINE vf partners(vf a, std::integer_sequence<int, I...>) { return pick<(I ^ H)...>(a, a); }
using Lanes = std::make_integer_sequence<int, W>;

// Lane l of the result is the sum of the lanes of v[l].
template <int H = 1> INLINE vf totals(const vf* v) {
    if constexpr (H == W / 2) {
        return fold<H>(v[0], v[1], Lanes{});
    } else {
        vf half[W / H / 2];
        unroll<W / H / 2>([&](auto i)
                              __attribute__((always_inline)) { half[i] = fold<H>(v[2 * i], v[2 * i + 1], Lanes{}); });
        return totals<2 * H>(half);
    }
}
// Each lane gets the greatest, or the sum, of its group of N neighbours.
template <int N, int H = 1> INLINE vf group_max(vf v) {
    if constexpr (H >= N) return v;
    else {
        const vf other = partners<H>(v, Lanes{});
        return group_max<N, 2 * H>(other > v ? other : v);
    }
}
template <int N, int H = 1> INLINE vf group_sum(vf v) {
    if constexpr (H >= N) return v;
    else return group_sum<N, 2 * H>(v + partners<H>(v, Lanes{}));
}

// ---- functions ------------------------------------------------------------------------------------

// 2^x for x <= 0, within 2e-7 of the value; below -126 it is 0.
INLINE vf exp2_of(vf x) {
    const vf kept = x < -126.0f ? splat(-126.0f) : x;
    const vf shifted = kept + 12582912.0f;  // 1.5 * 2^23: the integer part lands in the low bits
    const vf f = kept - (shifted - 12582912.0f);
    vf y = splat(1.5353362e-4f);
    y = y * f + 1.3398875e-3f;
    y = y * f + 9.6184374e-3f;
    y = y * f + 5.5503325e-2f;
    y = y * f + 2.4022648e-1f;
    y = y * f + 6.9314720e-1f;
    y = y * f + 1.0f;
    const vf power = bits_as<vf>((bits_as<vi>(shifted) << 23) + (127 << 23));
    return x < -126.0f ? vf{} : y * power;  // a product, so that NaN stays NaN
}
// tanh, within 2e-7 of the value: near 0 by its series, since 1 - e^-2x cancels there.
INLINE vf tanh_of(vf x) {
    const vf size = x < 0.0f ? -x : x, square = x * x;
    vf y = splat(2.1869488e-2f);
    y = y * square - 5.3968254e-2f;
    y = y * square + 1.3333333e-1f;
    y = y * square - 3.3333333e-1f;
    const vf near = x + x * square * y;
    const vf e = exp2_of(size * -2.8853901f);
    const vf far = (1.0f - e) / (1.0f + e);
    return size < 0.25f ? near : x < 0.0f ? -far : far;
}

// ---- elements -------------------------------------------------------------------------------------

// Interleaved: a pair holds the even elements of a chunk and the odd ones, which needs no shuffle.
#if defined(__AVX2__)
template <class T> constexpr bool INTERLEAVED = std::is_same_v<T, bf16>;
#else
template <class T> constexpr bool INTERLEAVED = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;
#endif
// e4m3 is read as f16 with the same bits, which is 2^-8 of its value.
template <class T> constexpr float UNIT = std::is_same_v<T, e4m3> ? 256.0f : 1.0f;

// Where element i of a row is found after loading.
template <class T> constexpr int place(int i) {
    const int r = i % CHUNK;
    return INTERLEAVED<T> ? i - r + r % 2 * W + r / 2 : i;
}

INLINE vf half_to_float(vu h) {  // one f16 in the low half of each lane
    const vf size = bits_as<vf>((h & 0x7FFF) << 13) * bits_as<vf>(vu{} + (239u << 23));  // 2^112
    const vu special = (h & 0x7C00) == 0x7C00 ? vu{} + 0x7F800000u : vu{};
    return bits_as<vf>(bits_as<vu>(size) | special | (h & 0x8000) << 16);
}

// A chunk as it is stored.
template <int BYTES> struct Stored;
template <> struct Stored<4> {
    typedef Pair type;
};
template <> struct Stored<2> {
    typedef char type __attribute__((vector_size(CHUNK * 2)));
};
template <> struct Stored<1> {
    typedef char type __attribute__((vector_size(CHUNK)));
};
template <class T> using Raw = typename Stored<sizeof(T)>::type;

template <class T> INLINE Pair widen(Raw<T> raw) {
    if constexpr (std::is_same_v<T, float>) {
        return raw;
    } else if constexpr (std::is_same_v<T, bf16>) {
        const vu both = bits_as<vu>(raw);
        return {bits_as<vf>(both << 16), bits_as<vf>(both & 0xFFFF0000u)};
#if defined(__AVX512BW__)
    } else if constexpr (std::is_same_v<T, f16>) {
        const __m512i h = bits_as<__m512i>(raw);
        return {_mm512_cvtph_ps(_mm512_castsi512_si256(h)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1))};
    } else {
        const __m512i x = _mm512_cvtepi8_epi16(bits_as<__m256i>(raw));
        const __m512i size = _mm512_and_si512(x, _mm512_set1_epi16(0x7F));
        __m512i h = _mm512_and_si512(_mm512_slli_epi16(x, 7), _mm512_set1_epi16(short(0xBFFF)));
        h = _mm512_mask_mov_epi16(h, _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7F)), _mm512_set1_epi16(0x7E00));
        return {_mm512_cvtph_ps(_mm512_castsi512_si256(h)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1))};
    }
#elif defined(__AVX2__)
    } else if constexpr (std::is_same_v<T, f16>) {
        const __m256i h = bits_as<__m256i>(raw);
        return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
    } else {
        const __m256i x = _mm256_cvtepi8_epi16(bits_as<__m128i>(raw)), top = _mm256_set1_epi16(0x7F);
        __m256i h = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(short(0xBFFF)));
        const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(x, top), top);
        h = _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7E00)));
        return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
    }
#else
    } else if constexpr (std::is_same_v<T, f16>) {
        const vu both = bits_as<vu>(raw);
        return {half_to_float(both & 0xFFFF), half_to_float(both >> 16)};
    } else {
        typedef uint8_t vb __attribute__((vector_size(W)));
        auto one = [](vb bytes) {
            const vu x = __builtin_convertvector(bytes, vu), h = (x & 0x7F) << 7;
            return half_to_float((x & 0x80) << 8 | ((x & 0x7F) == 0x7F ? vu{} + 0x7E00u : h));
        };
        return {one(load_as<vb>(&raw)), one(load_as<vb>(reinterpret_cast<char*>(&raw) + W))};
    }
#endif
}

// A chunk of which only the first n elements are the row's; the others come as zeros, unread.
template <class T> INLINE Raw<T> load_raw(const T* p) { return load_as<Raw<T>>(p); }
template <class T> INLINE Raw<T> load_raw(const T* p, int n) {
#if defined(__AVX512BW__)
    if constexpr (sizeof(T) == 4) {
        const uint32_t mask = n < 32 ? (1u << n) - 1 : ~0u;
        return {bits_as<vf>(_mm512_maskz_loadu_ps(mask, p)), bits_as<vf>(_mm512_maskz_loadu_ps(mask >> 16, p + 16))};
    } else if constexpr (sizeof(T) == 2) {
        return bits_as<Raw<T>>(_mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1 : ~0u, p));
    } else {
        return bits_as<Raw<T>>(_mm256_maskz_loadu_epi8(n < 32 ? (1u << n) - 1 : ~0u, p));
    }
#else
    alignas(64) char buffer[CHUNK * sizeof(T)] = {};
    std::memcpy(buffer, p, n * sizeof(T));
    return load_as<Raw<T>>(buffer);
#endif
}

inline float widen_one(float x) { return x; }
inline float widen_one(bf16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }
inline float widen_one(f16 x) { return half_to_float(vu{} + x.bits)[0]; }
inline void narrow(float f, float& x) { x = f; }
inline void narrow(float f, bf16& x) {
    const uint32_t u = bits_as<uint32_t>(f);
    x.bits = f != f ? 0x7FC0 : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}
inline void narrow(float f, f16& x) {  // round to nearest even, by float arithmetic
    const uint32_t u = bits_as<uint32_t>(f), sign = u >> 16 & 0x8000, size = u & 0x7FFFFFFF;
    uint32_t h;
    if (size > 0x7F800000) h = 0x7E00;
    else if (size >= 0x477FF000) h = 0x7C00;                                                      // 65520 and up
    else if (size < 0x38800000) h = bits_as<uint32_t>(bits_as<float>(size) + 0.5f) - 0x3F000000;  // subnormal
    else h = (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13;
    x.bits = sign | h;
}
