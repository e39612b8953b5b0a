// tile.h: attention of G query heads that share a KV head to one tile of tokens.
//
// Scores live in vectors of W lanes: of STEP tokens for each of G heads, lane g * STEP + t. So one pass over
// K yields whole vectors, and scaling, masks and the softmax treat all heads at once.
#pragma once

#include <algorithm>
#include <cmath>

#include "vectors.h"

constexpr int TILE = 64;  // tokens at most

// Rows of a tile, one pointer a token, up to the last step's end: past n they repeat the last row.
template <class T> struct Tile {
    const T *k[TILE], *v[TILE];
    int n = 0;
    void add(const T* key, const T* value) { k[n] = key, v[n++] = value; }
    void pad() {
        for (int t = n; t % W; t++) k[t] = k[n - 1], v[t] = v[n - 1];
    }
};

// bf16 products are summed in pairs by the instruction made for it: exact products, fp32 sums.
#if defined(__AVX512BF16__)
template <class T> constexpr bool PAIRED = std::is_same_v<T, bf16>;
#else
template <class T> constexpr bool PAIRED = false;
#endif
template <class T> using Query = std::conditional_t<PAIRED<T>, bf16, float>;

// The running softmax of G heads. Accumulators are in loading order (place), `wide` floats a head.
struct Heads {
    float *acc, *top, *sum;  // top and sum: W lanes; top repeats a head's peak, sum is over a head's lanes
    static constexpr int64_t floats(int heads, int wide) { return int64_t(heads) * wide + 2 * W; }
    template <int G> static Heads at(float* p, int wide) { return {p, p + G * wide, p + G * wide + W}; }
    template <int G> void clear(int wide) {
        std::memset(acc, 0, sizeof(float) * G * wide);
        store(top, splat(-INFINITY)), store(sum, vf{});
    }
};

// How raw products become scores in units of log2, lane by lane.
struct Rule {
    float to_log2;                // without softcap: scale * log2(e)
    float cap, to_cap, from_cap;  // with it: from_cap * tanh(product * to_cap)
    bool sloped;
    vf slope, position;  // alibi: slope * (position of the step's lane + t - own position)
    vi first, last;      // visible tokens of the tile: first <= t < last
    vi lane;             // t within a step

    INLINE vf operator()(vf product, int t) const {
        vf s = cap != 0 ? from_cap * tanh_of(product * to_cap) : product * to_log2;
        if (sloped) s += slope * (position + float(t));
        const vi at = lane + t;
        return (at >= first) & (at < last) ? s : splat(-INFINITY);
    }
};

template <class T, int D, int G, class Ahead>
INLINE void products(const Tile<T>& tile, int64_t offset, int dim, const Query<T>* q, float* score, Ahead& ahead) {
    constexpr int STEP = W / G;
    const int chunks = ((D ? D : dim) + CHUNK - 1) / CHUNK, tail = (D ? D : dim) % CHUNK, wide = chunks * CHUNK;
    for (int t = 0; t < tile.n; t += STEP) {
        const T* rows[STEP];
        unroll<STEP>([&](auto i) __attribute__((always_inline)) { rows[i] = tile.k[t + i] + offset; });
        vf sums[W] = {};
        auto chunk = [&](int at, auto load) __attribute__((always_inline)) {
            ahead.pull();
            unroll<STEP>([&](auto i) __attribute__((always_inline)) {
                const Raw<T> raw = load(rows[i] + at);
#if defined(__AVX512BF16__)
                if constexpr (PAIRED<T>) {
                    unroll<G>([&](auto g) __attribute__((always_inline)) {
                        vf& sum = sums[g * STEP + i];
                        sum = bits_as<vf>(_mm512_dpbf16_ps(bits_as<__m512>(sum), bits_as<__m512bh>(raw),
                                                           load_as<__m512bh>(q + g * wide + at)));
                    });
                    return;
                }
#endif
                const Pair k = widen<T>(raw);
                unroll<G>([&](auto g) __attribute__((always_inline)) {
                    vf& sum = sums[g * STEP + i];
                    sum += load_as<vf>(q + g * wide + at) * k.a;
                    sum += load_as<vf>(q + g * wide + at + W) * k.b;
                });
            });
        };
        const int whole = wide - (tail ? CHUNK : 0);
#pragma GCC unroll 1  // else q is kept in registers that the sums need
        for (int at = 0; at < whole; at += CHUNK)
            chunk(at, [](const T* p) __attribute__((always_inline)) { return load_raw<T>(p); });
        if (tail) chunk(whole, [&](const T* p) __attribute__((always_inline)) { return load_raw<T>(p, tail); });
        store(score + t * G, totals(sums));
    }
}

// Scores become weights; what was summed under a lower peak shrinks.
template <int G> INLINE void softmax(int n, int wide, const Rule& rule, float* score, Heads& heads) {
    constexpr int STEP = W / G;
    const vf before = load_as<vf>(heads.top);
    vf top = before;
    for (int t = 0; t < n; t += STEP) {
        const vf s = rule(load_as<vf>(score + t * G), t);
        store(score + t * G, s);
        top = s > top ? s : top;
    }
    top = group_max<STEP>(top);
    const vf base = top == -INFINITY ? vf{} : top;  // nothing visible yet: all weights are 0, not NaN
    vf sum = load_as<vf>(heads.sum);
    alignas(64) float shrink[W];
    store(shrink, exp2_of(before - base));
    bool raised = false;
    for (int g = 0; g < G; g++) raised |= top[g * STEP] > before[g * STEP];
    if (raised) {
        sum *= load_as<vf>(shrink);
        for (int g = 0; g < G; g++)
            for (int i = 0; i < wide; i += W)
                store(heads.acc + g * wide + i, load_as<vf>(heads.acc + g * wide + i) * shrink[g * STEP]);
        store(heads.top, top);
    }
    for (int t = 0; t < n; t += STEP) {
        const vf weight = exp2_of(load_as<vf>(score + t * G) - base);
        store(score + t * G, weight);
        sum += weight;
    }
    store(heads.sum, sum);
}

// acc += weights * V, a few chunks of all heads in registers at a time.
template <int D, int G> constexpr int CHUNKS_AT_ONCE = std::max(1, std::min(REGISTERS / 4 / G, D ? D / CHUNK : 2));
template <int D, int G> int pulls_a_step(int dim) {
    constexpr int C = CHUNKS_AT_ONCE<D, G>;
    const int whole = dim / CHUNK, tail = dim % CHUNK ? 1 : 0;
    return whole + tail + W / G * (whole / C + whole % C + tail);
}
template <class T, int D, int G, class Ahead>
INLINE void values(const Tile<T>& tile, int64_t offset, int dim, const float* weight, float* acc, Ahead& ahead) {
    constexpr int STEP = W / G, C = CHUNKS_AT_ONCE<D, G>;
    const int chunks = ((D ? D : dim) + CHUNK - 1) / CHUNK, tail = (D ? D : dim) % CHUNK, wide = chunks * CHUNK;
    auto columns = [&](int at, auto count, auto load) __attribute__((always_inline)) {
        constexpr int N = decltype(count)::value;
        Pair a[G][N];
        unroll<G>([&](auto g) __attribute__((always_inline)) {
            unroll<N>([&](auto c) __attribute__((always_inline)) {
                const float* p = acc + g * wide + at + c * CHUNK;
                a[g][c] = {load_as<vf>(p), load_as<vf>(p + W)};
            });
        });
        for (int t = 0; t < tile.n; t += STEP)
            unroll<STEP>([&](auto i) __attribute__((always_inline)) {
                ahead.pull();
                const T* row = tile.v[t + i] + offset + at;
                unroll<N>([&](auto c) __attribute__((always_inline)) {
                    const Pair v = widen<T>(load(row + c * CHUNK));
                    unroll<G>([&](auto g) __attribute__((always_inline)) {
                        const vf w = splat(weight[t * G + g * STEP + i]);
                        a[g][c].a += w * v.a;
                        a[g][c].b += w * v.b;
                    });
                });
            });
        unroll<G>([&](auto g) __attribute__((always_inline)) {
            unroll<N>([&](auto c) __attribute__((always_inline)) {
                float* p = acc + g * wide + at + c * CHUNK;
                store(p, a[g][c].a), store(p + W, a[g][c].b);
            });
        });
    };
    auto full = [](const T* p) __attribute__((always_inline)) { return load_raw<T>(p); };
    const int whole = wide - (tail ? CHUNK : 0);
    int at = 0;
    for (; at + C * CHUNK <= whole; at += C * CHUNK) columns(at, std::integral_constant<int, C>{}, full);
    for (; at < whole; at += CHUNK) columns(at, std::integral_constant<int, 1>{}, full);
    if (tail)
        columns(at, std::integral_constant<int, 1>{},
                [&](const T* p) __attribute__((always_inline)) { return load_raw<T>(p, tail); });
}

template <class T, int D, int G, class Ahead> void attend(const Tile<T>& tile, int64_t offset, int dim,
                                                          const Query<T>* q, const Rule& rule, Heads heads,
                                                          Ahead& ahead) {
    const int wide = ((D ? D : dim) + CHUNK - 1) / CHUNK * CHUNK;
    alignas(64) float score[TILE * G];
    products<T, D, G>(tile, offset, dim, q, score, ahead);
    softmax<G>(tile.n, wide, rule, score, heads);
    values<T, D, G>(tile, offset, dim, score, heads.acc, ahead);
}
