// prefill.h: several query tokens a sequence, causal. A task is a run of a sequence's queries for one KV
// head: each tile of K and V is turned into floats once and then met by all its rows, G at a time.
#pragma once

#include "work.h"

constexpr int ROWS = 64;  // query tokens x heads of a task, about

struct Run {
    int sequence, first, last;
};  // queries, counted from the sequence's first

template <class T, class Q, int D> class Prefill {
  public:
    explicit Prefill(const Params& p)
        : p(p),
          heads(p.query_heads / p.kv_heads),
          wide((p.head_dim + CHUNK - 1) / CHUNK * CHUNK),
          state(Heads::floats(G, wide)),
          base(rule_of(p, UNIT<T>)) {
        for (int i = 0; i < W; i++) base.lane[i] = i % STEP;
    }

    void run() {
        std::vector<Run> runs;
        const int most = std::max(1, ROWS / heads);
        for (int s = 0; s < p.batch; s++)
            for (int i = 0, n = p.cu_queries[s + 1] - p.cu_queries[s]; i < n; i += most)
                runs.push_back({s, i, std::min(n, i + most)});
        // The last queries see the most tokens: begin with them, so that no thread ends with a long task.
        run_tasks(int64_t(runs.size()) * p.kv_heads, p.threads,
                  [&](int64_t i) { attend_run(runs[runs.size() - 1 - i / p.kv_heads], i % p.kv_heads); });
    }

  private:
    static constexpr int G = 4, STEP = W / G;
    static constexpr int WIDE = (D + CHUNK - 1) / CHUNK * CHUNK;

    void attend_run(const Run& run, int kv_head) {
        const int rows = (run.last - run.first) * heads, groups = (rows + G - 1) / G;
        const int tile_floats = TILE * wide;
        static thread_local Memory memory;
        float* keys = memory.floats(2 * tile_floats + groups * (state + G * wide));
        float *values = keys + tile_floats, *q = values + tile_floats, *states = q + groups * G * wide;
        const int64_t token = p.cu_queries[run.sequence];
        auto row_of = [&](int r) {  // past the last row, the last again
            r = std::min(r, rows - 1);
            return (token + run.first + r / heads) * p.query_heads + kv_head * heads + r % heads;
        };
        for (int r = 0; r < groups * G; r++)
            pack_floats(static_cast<const Q*>(p.q) + row_of(r) * p.head_dim, q + r * wide);
        for (int g = 0; g < groups; g++) Heads::at<G>(states + g * state, wide).template clear<G>(wide);

        const int length = p.seq_lens[run.sequence];
        const int origin = length - (p.cu_queries[run.sequence + 1] - p.cu_queries[run.sequence]);
        const int end = origin + run.last;
        const int begin = p.window ? std::max(0, origin + run.first + 1 - p.window) : 0;
        for (int first = begin; first < end; first += TILE) {
            const int n = std::min(TILE, end - first);
            Tile<float> tile;
            for (int t = 0; t < n; t++) {
                const int64_t at =
                    p.table[run.sequence * p.table_stride + (first + t) / p.block_size] * p.stride_block +
                    (first + t) % p.block_size * p.stride_token + kv_head * p.stride_head;
                widen_row(static_cast<const T*>(p.k) + at, keys + t * wide);
                widen_row(static_cast<const T*>(p.v) + at, values + t * wide);
                tile.add(keys + t * wide, values + t * wide);
            }
            tile.pad();
            for (int g = 0; g < groups; g++) {
                const int oldest = origin + run.first + g * G / heads;
                const int newest = origin + run.first + std::min(g * G + G - 1, rows - 1) / heads;
                Tile<float> seen = tile;
                seen.n = std::min(n, newest + 1 - first);  // later tokens are in the future of all its rows
                if (seen.n <= 0 || (p.window && first + n <= oldest + 1 - p.window)) continue;
                NoAhead none;
                attend_floats(seen, q + g * G * wide, rule(run, origin, first, kv_head, g, rows),
                              Heads::at<G>(states + g * state, wide), none);
            }
        }
        bool broken = false;
        for (int r = 0; r < rows; r++) {
            const Heads h = Heads::at<G>(states + r / G * state, wide);
            for (int i = 0; i < wide; i++) broken |= h.acc[r % G * wide + i] != h.acc[r % G * wide + i];
            float sum = 0;
            for (int t = 0; t < STEP; t++) sum += h.sum[r % G * STEP + t];
            finish<T, Q>(p, h.acc + r % G * wide, h.top[r % G * STEP], sum, row_of(r));
        }
        // Queries share their tiles, and a weight of 0 times NaN is NaN: one in V of a later token has reached those
        // that do not see it. A query alone is met by the tokens that it sees and no other.
        if (broken && run.last - run.first > 1)
            for (int i = run.first; i < run.last; i++) attend_run({run.sequence, i, i + 1}, kv_head);
    }

    Rule rule(const Run& run, int origin, int first, int kv_head, int g, int rows) const {
        Rule r = base;
        for (int l = 0; l < W; l++) {
            const int row = std::min(g * G + l / STEP, rows - 1), own = origin + run.first + row / heads;
            r.last[l] = own + 1 - first;
            r.first[l] = p.window ? own + 1 - p.window - first : 0;
            if (!r.sloped) continue;
            r.slope[l] = LOG2E * p.alibi[kv_head * heads + row % heads];
            r.position[l] = float(first + r.lane[l] - own);
        }
        return r;
    }

    void pack_floats(const Q* from, float* to) const {
        for (int i = 0; i < wide; i++) to[place<T>(i)] = i < p.head_dim ? widen_one(from[i]) : 0.0f;
    }
    INLINE void widen_row(const T* from, float* to) const {
        const int dim = D ? D : p.head_dim;
        for (int i = 0; i < dim; i += CHUNK) {
            const Pair pair = widen<T>(i + CHUNK <= dim ? load_raw<T>(from + i) : load_raw<T>(from + i, dim - i));
            store(to + i, pair.a), store(to + i + W, pair.b);
        }
    }
    void attend_floats(const Tile<float>& tile, const float* q, const Rule& r, Heads h, NoAhead& none) const {
        attend<float, WIDE, G>(tile, 0, wide, q, r, h, none);
    }

    const Params& p;
    const int heads, wide;
    const int64_t state;
    Rule base;
};
