// decode.h: one query token a sequence. A task is a split of a sequence, all heads; the thread that ends
// the last split of a sequence combines them.
//
// Inside a split the KV heads of a tile come in the inner loop where the heads of a token lie together,
// so that the cache is read in the order it lies in memory. While one tile is worked on in the L2 cache
// the next trickles in, a few lines at a time: in bursts it would stall, by the hardware alone it stops
// at every page.
#pragma once

#include "work.h"

constexpr int TILE_BYTES = 128 << 10;  // of K and V together
constexpr int LINE = 64;

// Fetches the rows of a tile, K and V of a token in turn, a little at each pull.
template <class T> class Ahead {
  public:
    Ahead(const Tile<T>& tile, int64_t offset, int run_bytes, int pulls)
        : tile(tile),
          offset(offset),
          run_bytes(run_bytes),
          runs(2 * tile.n),
          batch((runs * ((run_bytes + LINE - 1) / LINE) + pulls - 1) / pulls) {
        next_run();
    }
    INLINE void pull() {
        for (int i = 0; i < batch; i++) {
            __builtin_prefetch(at, 0, 2);  // into L2; into L1 it would reach half the rate
            at += LINE;
            if (at >= end) next_run();
        }
    }

  private:
    void next_run() {
        if (run < runs) {
            at = reinterpret_cast<const char*>((run % 2 ? tile.v : tile.k)[run / 2] + offset);
            end = at + run_bytes;
            run++;
        } else {
            batch = 0;
        }
    }
    const Tile<T>& tile;
    const int64_t offset;
    const int run_bytes, runs;
    int batch, run = 0;
    const char *at = nullptr, *end = nullptr;
};

struct Split {
    int sequence, begin, end, index, count;
};

template <class T, class Q, int D, int G> class Decode {
  public:
    explicit Decode(const Params& p)
        : p(p),
          grouping(Grouping::of<G>(p)),
          wide((p.head_dim + CHUNK - 1) / CHUNK * CHUNK),
          state(Heads::floats(G, wide)),
          base(rule_of(p, UNIT<T>)) {
        const int row = p.head_dim * sizeof(T);
        together = p.token_major ? std::clamp(TILE_BYTES / (2 * W * row), 1, p.kv_heads) : 1;
        size = std::clamp(TILE_BYTES / (2 * together * row) / W * W, W, TILE);
        const int coprime = size % 13 ? 13 : 11;                     // sizes are multiples of 4 up to 64
        stride = p.block_size < 2 * size && !p.alibi ? coprime : 1;  // alibi counts positions
        for (int i = 0; i < W; i++) base.lane[i] = i % (W / G);
    }

    void run() {
        std::vector<Split> splits;
        int64_t tokens = 0;
        for (int s = 0; s < p.batch; s++) {
            const int end = p.seq_lens[s], begin = p.window ? std::max(0, end - p.window) : 0;
            const int count = std::max(1, (end - begin + p.split_tokens - 1) / p.split_tokens);
            for (int i = 0; i < count; i++)
                splits.push_back(
                    {s, begin + i * p.split_tokens, std::min(end, begin + (i + 1) * p.split_tokens), i, count});
            tokens += end - begin;
        }
        static thread_local Memory memory;
        const int64_t part = p.kv_heads * grouping.groups * state;
        float* parts = memory.floats(splits.size() * part);
        std::vector<std::atomic<int>> done(p.batch);
        const int64_t bytes = tokens * p.kv_heads * p.head_dim * 2 * sizeof(T);
        run_tasks(splits.size(), std::min<int64_t>(p.threads, 1 + (bytes >> 18)), [&](int64_t i) {
            const Split& split = splits[i];
            stream(split, parts + i * part);
            if (done[split.sequence].fetch_add(1, std::memory_order_acq_rel) + 1 == split.count)
                combine(split.sequence, split.count, parts + (i - split.index) * part, part);
        });
    }

  private:
    // Tokens from `first` on. With short blocks a whole tile comes out of order: met in memory order, the
    // hardware's prefetcher runs on past the end of each block, where the next tile lies by luck only, and
    // up to a third of the bandwidth goes there.
    void fill(Tile<T>& tile, int sequence, int first, int end) {
        const int32_t* table = p.table + sequence * p.table_stride;
        int block = first / p.block_size, at = first % p.block_size;
        tile.n = std::clamp(end - first, 0, size);
        for (int t = 0; t < tile.n; t++) {
            const int64_t offset = table[block] * p.stride_block + at * p.stride_token;
            const int u = tile.n == size ? t * stride % size : t;  // where token t goes
            tile.k[u] = static_cast<const T*>(p.k) + offset;
            tile.v[u] = static_cast<const T*>(p.v) + offset;
            if (++at == p.block_size) at = 0, block++;
        }
        tile.pad();
    }
    // One line in about a KiB, a whole tile ahead of the rest: it is a page's address that takes long.
    void touch(const Tile<T>& tile, int64_t offset, int run_bytes) {
        for (int t = 0; t < tile.n; t += std::max(1, 1024 / run_bytes)) {
            __builtin_prefetch(tile.k[t] + offset, 0, 2);
            __builtin_prefetch(tile.v[t] + offset, 0, 2);
        }
    }
    void stream(const Split& split, float* part) {
        static thread_local Memory memory;
        const int slots = p.kv_heads * grouping.per_kv_head;
        auto* q = reinterpret_cast<Query<T>*>(memory.floats(int64_t(slots) * wide));
        const Q* from = static_cast<const Q*>(p.q) + int64_t(split.sequence) * p.query_heads * p.head_dim;
        for (int s = 0; s < slots; s++) {
            const int head = grouping.query_head(s / grouping.per_kv_head, s % grouping.per_kv_head);
            pack<T>(from + head * p.head_dim, p.head_dim, wide, q + int64_t(s) * wide);
        }
        for (int g = 0; g < slots / G; g++) Heads::at<G>(part + g * state, wide).template clear<G>(wide);
        for (int head = 0; head < p.kv_heads; head += together) {
            const int heads = std::min(together, p.kv_heads - head);
            Tile<T> tiles[3];
            fill(tiles[0], split.sequence, split.begin, split.end);
            fill(tiles[1], split.sequence, split.begin + size, split.end);
            for (int first = split.begin, i = 0; first < split.end; first += size, i++) {
                const Tile<T>&tile = tiles[i % 3], &next = tiles[(i + 1) % 3];
                Tile<T>& later = tiles[(i + 2) % 3];
                fill(later, split.sequence, first + 2 * size, split.end);
                const int run_bytes = heads * p.head_dim * sizeof(T);
                touch(later, head * p.stride_head, run_bytes);
                const int calls = heads * grouping.groups, steps = (tile.n + W / G - 1) / (W / G);
                Ahead<T> ahead(next, head * p.stride_head, run_bytes, calls * steps * pulls_a_step<D, G>(p.head_dim));
                for (int c = 0; c < calls; c++) {
                    const int kv_head = head + c / grouping.groups, g = kv_head * grouping.groups + c % grouping.groups;
                    attend<T, D, G>(tile, kv_head * p.stride_head, p.head_dim, q + int64_t(g) * G * wide,
                                    rule(split.sequence, first, tile.n, g), Heads::at<G>(part + g * state, wide),
                                    ahead);
                }
            }
        }
    }

    INLINE Rule rule(int sequence, int first, int n, int g) const {
        Rule r = base;
        r.last = vi{} + n;
        if (r.sloped) {
            r.position = __builtin_convertvector(r.lane, vf) + float(first - p.seq_lens[sequence] + 1);
            for (int l = 0; l < W; l++)
                r.slope[l] =
                    LOG2E * p.alibi[grouping.query_head(g / grouping.groups, g % grouping.groups * G + l / (W / G))];
        }
        return r;
    }

    void combine(int sequence, int count, float* parts, int64_t part) {
        for (int g = 0; g < p.kv_heads * grouping.groups; g++)
            for (int i = 0; i < G; i++) {
                const int slot = g % grouping.groups * G + i;
                if (slot >= grouping.heads) break;
                float top = -INFINITY, sum = 0;
                float* acc = Heads::at<G>(parts + g * state, wide).acc + i * wide;
                for (int s = 0; s < count; s++)
                    top = std::max(top, Heads::at<G>(parts + s * part + g * state, wide).top[i * (W / G)]);
                for (int s = 0; s < count; s++) {
                    const Heads heads = Heads::at<G>(parts + s * part + g * state, wide);
                    const float own = heads.top[i * (W / G)], weight = own == -INFINITY ? 0.0f : std::exp2(own - top);
                    for (int t = 0; t < W / G; t++) sum += weight * heads.sum[i * (W / G) + t];
                    for (int d = 0; d < wide; d++)
                        acc[d] = s ? acc[d] + weight * heads.acc[i * wide + d] : weight * acc[d];
                }
                finish<T, Q>(p, acc, top, sum,
                             int64_t(sequence) * p.query_heads + grouping.query_head(g / grouping.groups, slot));
            }
    }

    const Params& p;
    const Grouping grouping;
    const int wide;       // floats of a head
    const int64_t state;  // floats of a group's running softmax
    int together, size;   // KV heads and tokens of a tile
    int stride;           // from a token to the next of a whole tile
    Rule base;
};
