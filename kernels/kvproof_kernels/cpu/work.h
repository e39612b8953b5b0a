// work.h: threads, working memory and what decode and prefill share.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "params.h"
#include "tile.h"

// Calls task(i) for i in [0, count) from `threads` threads. They are made for the call and end with it: a
// process that forks between calls, or has another library's pool spinning, is no worse off.
template <class F> void run_tasks(int64_t count, int64_t threads, F&& task) {
    std::atomic<int64_t> next{0};
    auto loop = [&] {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(i);
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < std::min(threads, count); i++) {
        try {
            others.emplace_back(loop);
        } catch (const std::system_error&) {
            break;  // no more threads to be had: those that run do the work
        }
    }
    loop();
    for (std::thread& t : others) t.join();
}

// Memory that a thread keeps from call to call: fresh pages cost more than the work on small calls.
class Memory {
  public:
    ~Memory() { std::free(data); }
    float* floats(int64_t n) {
        if (n > size) {
            std::free(data);
            size = 0;
            data = static_cast<float*>(std::aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64));
            if (!data) throw std::bad_alloc();
            size = n;
        }
        return data;
    }

  private:
    float* data = nullptr;
    int64_t size = 0;
};

constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f;

inline Rule rule_of(const Params& p, float unit) {
    Rule r{};
    const float scale = p.scale * p.k_scale * unit;
    r.to_log2 = scale * LOG2E;
    if (p.softcap) r.cap = p.softcap, r.to_cap = scale / p.softcap, r.from_cap = p.softcap * LOG2E;
    r.sloped = p.alibi != nullptr;
    return r;
}

// A query head in loading order.
template <class T, class Q> INLINE void pack(const Q* from, int dim, int wide, Query<T>* to) {
    for (int i = 0; i < dim; i++) {
        if constexpr (PAIRED<T>) to[i] = from[i];
        else to[place<T>(i)] = widen_one(from[i]);
    }
    for (int i = dim; i < wide; i++) to[PAIRED<T> ? i : place<T>(i)] = {};
}

// Accumulators over their sum become an output row; without a visible token it is zeros.
template <class T, class Q> void finish(const Params& p, const float* acc, float top, float sum, int64_t row) {
    const float factor = sum == 0 ? 0.0f : p.v_scale * UNIT<T> / sum;
    Q* out = static_cast<Q*>(p.out) + row * p.head_dim;
    for (int i = 0; i < p.head_dim; i++) narrow(acc[place<T>(i)] * factor, out[i]);
    p.lse[row] = sum == 0 ? -INFINITY : (top + std::log2(sum)) * LN2;
}

struct NoAhead {
    void pull() {}
};

// Groups of query heads that are worked on together; the last head of a KV head's fills up its group.
struct Grouping {
    int heads, groups, per_kv_head;  // of one KV head: query heads, groups
    template <int G> static Grouping of(const Params& p) {
        const int heads = p.query_heads / p.kv_heads, groups = (heads + G - 1) / G;
        return {heads, groups, groups * G};
    }
    int query_head(int kv_head, int slot) const { return kv_head * heads + std::min(slot, heads - 1); }
};
