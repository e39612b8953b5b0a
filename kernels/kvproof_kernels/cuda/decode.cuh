// decode.cuh: attention of one new token a sequence over a paged KV cache.
//
// A block of threads takes some tokens of one sequence for the query heads that share a KV head, so each K
// and V row is read once. K and V arrive through rings of asynchronous copies, one ring a warp, so that
// warps wait for one another only where the staged part of the block table is turned over. Each keeps its
// own running softmax; these are merged once at the end. A sequence of more than `split_tokens` tokens
// leaves one partial result a split to paged_combine.
//
// Read slice.cuh first, then lanes.cuh or tensor.cuh (what is done with a tile of tokens), then this.
#pragma once
#include "combine.cuh"
#include "lanes.cuh"
#include "tensor.cuh"

namespace paged {

// The techniques of chapter section 3.2.7; each can be left out to see what it buys.
enum Technique {
    STAGED = 1,     // the block table goes through shared memory
    COALESCED = 2,  // neighbouring lanes load neighbouring entries, each of them once
    PREFETCH = 4,   // entries are loaded before they are needed
    BYPASS = 8,     // one or two blocks: their numbers are in registers, there is no table
};

// ---- a row of the block table -----------------------------------------------------------------------------
// Called with a logical block it gives the physical one. `turn(token, step)` prepares the fetch of `token` and
// says up to which token the table can answer. SHARED: a lane looks up one token of a tile and hands it around;
// otherwise each looks up what it copies. AHEAD: look up one step before the fetch.

constexpr int EVERY_TOKEN = 0x7FFFFFFF;

struct BypassedTable {
    static constexpr bool SHARED = true, AHEAD = false;
    const int first, block0, block1;

    __device__ __forceinline__ int turn(int, int) const { return EVERY_TOKEN; }
    __device__ __forceinline__ int operator()(int index) const { return index == first ? block0 : block1; }
};

template <int TECHNIQUES> struct DirectTable {
    static constexpr bool SHARED = (TECHNIQUES & COALESCED) != 0, AHEAD = (TECHNIQUES & PREFETCH) != 0;
    const int* const entries;

    __device__ __forceinline__ int turn(int, int) const { return EVERY_TOKEN; }
    __device__ __forceinline__ int operator()(int index) const { return __ldg(entries + index); }
};

template <class Core, int TECHNIQUES> struct StagedTable {
    static constexpr bool SHARED = true, AHEAD = false;
    static constexpr int PER_THREAD = Core::TABLE_ENTRIES / Core::THREADS;
    const Core& core;
    const int* const entries;
    const int last;         // the last entry there is
    int first;              // the first one staged
    int ahead[PER_THREAD];  // entries on their way

    __device__ __forceinline__ StagedTable(const Core& core, const int* entries, int first, int last)
        : core(core), entries(entries), last(last), first(first) {
        if constexpr (TECHNIQUES & PREFETCH) load(first);
    }
    __device__ __forceinline__ static int slot(int i) {
        return (TECHNIQUES & COALESCED) ? i * Core::THREADS + threadIdx.x : threadIdx.x * PER_THREAD + i;
    }
    __device__ __forceinline__ void load(int from) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            const int index = from + slot(i);
            ahead[i] = index <= last ? __ldg(entries + index) : 0;
        }
    }
    __device__ __forceinline__ int turn(int token, int step) {
        first = core.block_of(token);
        if constexpr (!(TECHNIQUES & PREFETCH)) load(first);
        __syncthreads();  // the entries staged before have been used
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) core.table[slot(i)] = ahead[i];
        __syncthreads();  // all are there
        if (first + Core::TABLE_ENTRIES > last) return EVERY_TOKEN;
        const int covered = (first + Core::TABLE_ENTRIES) * core.p.block_size;
        if constexpr (TECHNIQUES & PREFETCH) load(core.block_of(token + (covered - token) / step * step));
        return covered;
    }
    __device__ __forceinline__ int operator()(int index) const { return core.table[index - first]; }
};

// ---- the loop over tokens ---------------------------------------------------------------------------------

// Finds the rows of a warp's tiles, one tile after another, and fetches them.
template <class Core, class Table> struct Fetcher {
    static constexpr int STEP = Core::WARPS * Core::TILE, LOOKUPS = Table::SHARED ? 1 : Core::COPIES;
    const Core& core;
    const Table& table;
    const int end;
    int next;            // first token of the next tile
    int block[LOOKUPS];  // physical blocks of its rows

    __device__ __forceinline__ Fetcher(const Core& core, const Table& table, int begin, int end)
        : core(core), table(table), end(end), next(begin + core.warp * Core::TILE) {
        if constexpr (Table::AHEAD) look_up();
    }
    __device__ __forceinline__ int token(int i) const {
        return next + (Table::SHARED ? core.lane % Core::TILE : core.copy_row(i));
    }
    __device__ __forceinline__ void look_up() {
#pragma unroll
        for (int i = 0; i < LOOKUPS; i++) block[i] = token(i) < end ? table(core.block_of(token(i))) : 0;
    }
    __device__ __forceinline__ void fetch(int stage) {
        if constexpr (!Table::AHEAD) look_up();
        long long row[LOOKUPS];
#pragma unroll
        for (int i = 0; i < LOOKUPS; i++) row[i] = core.row(block[i], token(i));
        core.fetch(stage, next, end, [&](int i) -> long long {
            if constexpr (Table::SHARED) return __shfl_sync(~0u, row[0], core.copy_row(i));
            return row[Table::SHARED ? 0 : i];
        });
        copy_commit();
        next += STEP;
        if constexpr (Table::AHEAD) look_up();
    }
};

// Tokens [begin, end), dealt to the warps tile by tile. The warps take as many steps, so all meet in `turn`.
template <class Core, class Table> __device__ __forceinline__ void stream(Core& core, int begin, int end, Table table) {
    constexpr int STEP = Core::WARPS * Core::TILE, STAGES = Core::STAGES, LEAD = (STAGES - 1) * STEP;
    static_assert(LEAD + STEP <= Core::TABLE_ENTRIES, "the first fetches must not outrun the staged table");
    int covered = table.turn(begin, STEP);
    Fetcher<Core, Table> fetcher(core, table, begin, end);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetcher.fetch(s);
    int step = begin, stage = 0;
    for (;;) {
        const int until = min(end, covered - LEAD - STEP + 1);
        for (; step < until; step += STEP) {
            fetcher.fetch(stage == 0 ? STAGES - 1 : stage - 1);
            copy_wait<STAGES - 1>();
            core.attend(stage, step + core.warp * Core::TILE, end);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        if (step >= end) break;
        covered = table.turn(step + LEAD, STEP);
    }
    copy_wait<0>();
}

// ---- one block of threads, from beginning to end ----------------------------------------------------------

template <class Core> __host__ __device__ constexpr int shared_bytes() {
    return Core::TABLE_ENTRIES * 4 + max_of(Core::SCRATCH_BYTES, Core::WARPS * Core::HEADS * (Core::D + 2) * 4);
}

// Merge the warps' softmaxes and write the result, or this split's part of it.
template <class Core> __device__ __forceinline__ void finish(Core& core) {
    constexpr int HEADS = Core::HEADS, WARPS = Core::WARPS, D = Core::D;
    const Params& p = core.p;
    float* const tops = (float*)core.scratch;  // [WARPS][HEADS]
    float* const sums = tops + WARPS * HEADS;
    float* const accs = sums + WARPS * HEADS;  // [WARPS][HEADS][D]
    core.reduce();
    __syncthreads();  // the rings have been read
    core.deposit(tops + core.warp * HEADS, sums + core.warp * HEADS, accs + core.warp * HEADS * D);
    __syncthreads();
    for (int item = threadIdx.x; item < core.heads * D; item += Core::THREADS) {
        const int g = item / D, d = item % D;
        float peak = NEG_INF, total = 0, value = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) peak = fmaxf(peak, tops[w * HEADS + g]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = power_of_2(tops[w * HEADS + g] - peak);
            total += weight * sums[w * HEADS + g];
            value += weight * accs[(w * HEADS + g) * D + d];
        }
        value *= p.v_scale / total;
        const long long head = core.head(g);
        if (core.span.parts == 1) {
            from_float(value, ((typename Core::Q*)p.out)[head * D + d]);
            if (p.lse && d == 0) p.lse[head] = (peak + log2f(total)) * LN_2;
        } else {
            p.part_out[(head * p.splits + core.split) * D + d] = value;
            if (d == 0) p.part_lse[head * p.splits + core.split] = peak + log2f(total);
        }
    }
}

// An empty sequence attends to nothing.
template <class Core> __device__ __forceinline__ void write_nothing(const Core& core) {
    for (int item = threadIdx.x; item < core.heads * Core::D; item += Core::THREADS) {
        from_float(0, ((typename Core::Q*)core.p.out)[core.head(0) * Core::D + item]);
        if (core.p.lse && item % Core::D == 0) core.p.lse[core.head(item / Core::D)] = __uint_as_float(0xFF800000u);
    }
}

// grid (splits, KV heads x tiles of query heads, sequences). `splits` is made for the longest sequence there
// may be; lengths are read here, and what a shorter one leaves over returns at once. So a captured graph serves.
template <class Core, int TECHNIQUES> __global__ void __launch_bounds__(Core::THREADS, Core::MIN_BLOCKS)
    paged_decode(const __grid_constant__ Params p) {
    Core core(p);
    if (core.split >= max(core.span.parts, 1)) return;
    if (core.span.tokens == 0) return write_nothing(core);
    core.load_query();
    const int begin = core.span.begin + core.split * p.split_tokens;
    const int end = min(core.span.tokens, begin + p.split_tokens);
    const int first = core.block_of(begin), last = core.block_of(end - 1);
    const int* entries = p.table + core.sequence * p.table_stride;
    if ((TECHNIQUES & BYPASS) && last - first < 2)
        stream(core, begin, end, BypassedTable{first, __ldg(entries + first), __ldg(entries + last)});
    else if constexpr (TECHNIQUES & STAGED)
        stream(core, begin, end, StagedTable<Core, TECHNIQUES>(core, entries, first, last));
    else stream(core, begin, end, DirectTable<TECHNIQUES>{entries});
    finish(core);
}

}  // namespace paged
