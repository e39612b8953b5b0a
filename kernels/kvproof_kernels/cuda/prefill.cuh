// prefill.cuh: causal attention of several query tokens a sequence over a paged KV cache that holds theirs already:
// prefill, chunked prefill, speculative decode.
//
// A row is one query token of one query head; the rows of a sequence that share a KV head are numbered token by token.
// A block of threads takes some of them, and streams the tokens that these see through shared memory, one tile of K and
// V in use and one on its way. Each warp has rows of its own and keeps their running softmax in registers.
#pragma once
#include "alone.cuh"
#include "slice.cuh"

namespace paged {

constexpr int NO_TOKEN = 0x7FFFFFFF;

struct PrefillParams {
    const void* q;            // [tokens, query_heads, D], contiguous
    const void* k;            // row of (block, token, KV head): k + 16 bytes * (block*stride_block + ...)
    const void* v;            // with K's strides
    void* out;                // like q
    float* lse;               // [tokens, query_heads], natural logarithm; may be null
    const int* cu_seqlens_q;  // [sequences + 1]: where each sequence's query tokens begin and end
    const int* table;         // block table: [sequences, table_stride]
    const int* seq_lens;      // [sequences], in tokens; the query tokens are the last of them
    const float* alibi;       // [query_heads], slopes; read with the feature only
    long long table_stride;   // entries
    unsigned stride_block;    // strides in pieces of 16 bytes
    unsigned stride_token;
    unsigned stride_head;
    unsigned block_magic;  // ceil(2^32 / block_size), 0 for block_size 1
    int block_size;
    int sequences;
    int queries;  // tokens of q
    int query_heads;
    int kv_heads;
    int window;         // tokens seen, counted back from the query's; 2^31 - 1 for all
    float score_scale;  // as in Params
    float softcap;
    float v_scale;
};

// The rows of one block of threads, and the tokens that any of them sees.
// grid (floor(queries * group / ROWS) + sequences, KV heads): the blocks of a sequence begin at the row number of its
// first query, divided by ROWS, plus its own number; that leaves it enough of them, and a sequence is found by
// bisection. What is left over returns at once, so the grid does not depend on lengths.
template <int ROWS_, int FEATURES_> struct QueryTile {
    static constexpr int ROWS = ROWS_, FEATURES = FEATURES_, WARPS = 4, THREADS = WARPS * 32, WARP_ROWS = ROWS / WARPS;

    const PrefillParams& p;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv_head = blockIdx.y, group = p.query_heads / p.kv_heads;
    int sequence, query0, queries, tokens;  // the sequence; its first query token, their number, its length
    int row0, begin, end;                   // first row; tokens seen

    __device__ __forceinline__ QueryTile(const PrefillParams& p) : p(p) {
        const int place = gridDim.x - 1 - blockIdx.x;  // late rows see most: they begin first
        int above = p.sequences;
        sequence = 0;
        while (above - sequence > 1) {
            const int middle = (sequence + above) / 2;
            if (first_block(middle) <= place) sequence = middle;
            else above = middle;
        }
        query0 = __ldg(p.cu_seqlens_q + sequence);
        queries = __ldg(p.cu_seqlens_q + sequence + 1) - query0;
        tokens = __ldg(p.seq_lens + sequence);
        row0 = (place - first_block(sequence)) * ROWS;
        const int last = min((row0 + ROWS - 1) / group, queries - 1);
        end = tokens - queries + last + 1;
        begin = max(tokens - queries + row0 / group + 1 - p.window, 0);
    }
    __device__ __forceinline__ int first_block(int s) const {
        return (int)((long long)__ldg(p.cu_seqlens_q + s) * group / ROWS) + s;
    }
    __device__ __forceinline__ bool surplus() const { return row0 >= queries * group; }

    // Of row r of this block: the position of its query in the sequence, and its row of q, out and lse, or -1.
    __device__ __forceinline__ int position(int r) const { return tokens - queries + (row0 + r) / group; }
    __device__ __forceinline__ long long query_row(int r) const {
        const int query = (row0 + r) / group, head = kv_head * group + (row0 + r) % group;
        return query < queries ? (long long)(query0 + query) * p.query_heads + head : -1;
    }
    __device__ __forceinline__ float slope(int r) const {
        return (FEATURES & ALIBI) ? p.alibi[kv_head * group + (row0 + r) % group] * LOG2_E : 0;
    }

    // The logarithm of a token's weight, base 2, or NEG_INF for one that the query does not see.
    __device__ __forceinline__ float score(float product, float slope, int token, int position) const {
        if constexpr (FEATURES & SOFTCAP) product = p.softcap * hyperbolic_tangent(product);
        if constexpr (FEATURES & ALIBI) product = fmaf(slope, (float)(token - position), product);
        return token <= position && token > position - p.window ? product : NEG_INF;
    }
    // Pieces of 16 bytes from the start of the cache to a token's row; 0 for a token that nobody sees.
    __device__ __forceinline__ long long cache_row(int token) const {
        if (token >= end) return 0;
        const int index = p.block_magic ? (int)__umulhi(token, p.block_magic) : token;
        const long long block = __ldg(p.table + sequence * p.table_stride + index);
        return block * p.stride_block + (long long)(token - index * p.block_size) * p.stride_token +
               (long long)kv_head * p.stride_head;
    }
};

// Natural logarithm of a sum of weights 2^(score - top); nothing was seen where it is 0.
PAGED_FN float logarithm(float top, float sum) {
    return sum == 0 ? __uint_as_float(0xFF800000u) : (top + log2f(sum)) * LN_2;
}

// Where a row's piece lies in a tile: an odd distance of rows, or a swizzle, keeps ldmatrix and column reads apart.
template <int CHUNKS> struct TileLayout {
    static constexpr int PITCH = CHUNKS % 8 ? CHUNKS | 1 : CHUNKS;
    __device__ __forceinline__ static int place(int row, int chunk) {
        return row * PITCH + (CHUNKS % 8 ? chunk : chunk ^ (row & 7));
    }
};

// ---- on tensor cores: 2-byte caches, 16 rows a warp -------------------------------------------------------

template <class T, int D_, int FEATURES> struct PrefillTensor : QueryTile<64, FEATURES> {
    using KV = T;
    using Q = T;
    static constexpr int D = D_;
    static constexpr bool WIDE = D > 128;  // then q is in shared memory, to spare registers
    static constexpr int TILE = WIDE ? 32 : 64, CHUNKS = D / 8;
    static_assert(D % 16 == 0);

    using Base = QueryTile<64, FEATURES>;
    using Layout = TileLayout<CHUNKS>;
    using Base::p, Base::lane, Base::warp;
    static constexpr int OWN_BYTES = WIDE ? 64 * Layout::PITCH * 16 : 0;
    uint4* const query;  // [16] rows of this warp
    unsigned q[WIDE ? 1 : D / 16][4];
    float acc[D / 8][4];
    float top[2], sum[2], slope[2];  // of rows lane/4 and lane/4 + 8
    int position[2];

    __device__ __forceinline__ PrefillTensor(const PrefillParams& p, char* own)
        : Base(p), query((uint4*)own + warp * 16 * Layout::PITCH) {}
    __device__ __forceinline__ int row(int r) const { return warp * 16 + lane / 4 + r * 8; }

    __device__ __forceinline__ void load_query() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if constexpr (!WIDE) {
                const long long from = Base::query_row(row(r));
#pragma unroll
                for (int i = 0; i < D / 8; i++)
                    q[i / 2][i % 2 * 2 + r] = from < 0 ? 0 : ((const unsigned*)p.q)[(from * D + i * 8) / 2 + lane % 4];
            }
            top[r] = NEG_INF;
            sum[r] = 0;
            slope[r] = Base::slope(row(r));
            position[r] = Base::position(row(r));
        }
#pragma unroll
        for (int i = 0; i < D / 8 * 4; i++) acc[i / 4][i % 4] = 0;
        if constexpr (WIDE)
            for (int i = lane; i < 16 * CHUNKS; i += 32) {
                const long long from = Base::query_row(warp * 16 + i / CHUNKS);
                query[Layout::place(i / CHUNKS, i % CHUNKS)] =
                    from < 0 ? uint4{0, 0, 0, 0} : ((const uint4*)p.q)[from * CHUNKS + i % CHUNKS];
            }
    }

    __device__ __forceinline__ void attend(const uint4* k, const uint4* v, int first) {
        float score[TILE / 8][4] = {};
#pragma unroll(WIDE ? 4 : D / 16)
        for (int i = 0; i < D / 16; i++) {
            unsigned (&a)[4] = q[WIDE ? 0 : i];
            if constexpr (WIDE) load_matrices<false>(a, query + Layout::place(lane % 16, i * 2 + lane / 16));
#pragma unroll
            for (int t = 0; t < TILE / 16; t++) {
                unsigned b[4];
                load_matrices<false>(b, k + Layout::place(t * 16 + lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2));
                multiply_add<T>(score[t * 2], a, b[0], b[1]);
                multiply_add<T>(score[t * 2 + 1], a, b[2], b[3]);
            }
        }
        unsigned weights[TILE / 16][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float peak = top[r];
#pragma unroll
            for (int i = 0; i < TILE / 4; i++) {
                float& s = score[i / 2][r * 2 + i % 2];
                s = Base::score(s * p.score_scale, slope[r], first + i / 2 * 8 + lane % 4 * 2 + i % 2, position[r]);
                peak = fmaxf(peak, s);
            }
            peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
            peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
            const float shrink = power_of_2(top[r] - peak);
            top[r] = peak;
            sum[r] *= shrink;
#pragma unroll
            for (int i = 0; i < D / 8; i++) acc[i][r * 2] *= shrink, acc[i][r * 2 + 1] *= shrink;
#pragma unroll
            for (int i = 0; i < TILE / 8; i++) {
                float w[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {  // unseen: 0, also while nothing was seen
                    const float s = score[i][r * 2 + j];
                    w[j] = s == NEG_INF ? 0 : power_of_2(s - peak);
                    sum[r] += w[j];
                }
                weights[i / 2][i % 2 * 2 + r] = pack_floats<T>(w[0], w[1]);
            }
        }
#pragma unroll
        for (int t = 0; t < TILE / 16; t++)
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                unsigned b[4];
                load_matrices<true>(b, v + Layout::place(t * 16 + lane % 16, i * 2 + lane / 16));
                multiply_add<T>(acc[i * 2], weights[t], b[0], b[1]);
                multiply_add<T>(acc[i * 2 + 1], weights[t], b[2], b[3]);
            }
    }

    __device__ __forceinline__ void finish() {
        unsigned broken = 0;  // a bit for each row of the warp
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
            const long long to = Base::query_row(row(r));
            if (to < 0) continue;
            const float factor = sum[r] == 0 ? 0 : p.v_scale / sum[r];
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                const float a = acc[i][r * 2] * factor, b = acc[i][r * 2 + 1] * factor;
                ((unsigned*)p.out)[(to * D + i * 8) / 2 + lane % 4] = pack_floats<T>(a, b);
                if (a != a || b != b) broken |= 1u << (lane / 4 + r * 8);
            }
            if (p.lse && lane % 4 == 0) p.lse[to] = logarithm(top[r], sum[r]);
        }
        if (!(broken = any_bits(broken))) return;
#pragma unroll 1
        for (int r = 0; r < 16; r++) {
            const float peak = __shfl_sync(~0u, r < 8 ? top[0] : top[1], r * 4);
            const float total = __shfl_sync(~0u, r < 8 ? sum[0] : sum[1], r * 4);
            if (broken >> r & 1)
                attend_alone<KV, Q, D>((const Base&)*this, warp * 16 + r, peak, total == 0 ? 0 : p.v_scale / total);
        }
    }
};

// ---- by fused multiply-adds: the other caches, 4 rows a warp ----------------------------------------------

// A lane scores one token for all rows of its warp; then it sums a few dimensions of V over all tokens.
template <class KV_, class Q_, int D_, int FEATURES> struct PrefillLanes : QueryTile<16, FEATURES> {
    using KV = KV_;
    using Q = Q_;
    static constexpr int D = D_, TILE = D * sizeof(KV) > 512 ? 16 : 32, CHUNKS = D * sizeof(KV) / 16;
    static constexpr int VEC = Pack<KV>::N;
    static constexpr int WORDS = CHUNKS * 4, LANE_WORDS = (WORDS + 31) / 32;  // of V: 4 bytes each
    static constexpr int SPLIT = 4 / sizeof(KV), OUTS = LANE_WORDS * SPLIT;   // elements of a word, of a lane
    static constexpr int OWN_BYTES = (16 * D + 16 * 32) * 4;                  // q and weights, as floats

    using Base = QueryTile<16, FEATURES>;
    using Layout = TileLayout<CHUNKS>;
    using Base::p, Base::lane, Base::warp, Base::WARP_ROWS;
    float* const query;    // [WARP_ROWS][D] of this warp
    float* const weights;  // [WARP_ROWS][32] of this warp
    float acc[WARP_ROWS][OUTS], top[WARP_ROWS], sum[WARP_ROWS], slope[WARP_ROWS];

    __device__ __forceinline__ PrefillLanes(const PrefillParams& p, char* own)
        : Base(p), query((float*)own + warp * WARP_ROWS * D), weights((float*)own + 16 * D + warp * WARP_ROWS * 32) {}
    __device__ __forceinline__ int row(int r) const { return warp * WARP_ROWS + r; }

    __device__ __forceinline__ void load_query() {
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            const long long from = Base::query_row(row(r));
            for (int d = lane; d < D; d += 32)
                query[r * D + d] = from < 0 ? 0 : to_float(((const Q*)p.q)[from * D + d]) * p.score_scale;
            top[r] = NEG_INF;
            sum[r] = 0;
            slope[r] = Base::slope(row(r));
#pragma unroll
            for (int i = 0; i < OUTS; i++) acc[r][i] = 0;
        }
    }

    __device__ __forceinline__ void attend(const uint4* k, const uint4* v, int first) {
        float score[WARP_ROWS] = {};
        if (lane < TILE)
#pragma unroll(VEC < 16 ? 2 : 1)
            for (int c = 0; c < CHUNKS; c++) {
                float piece[VEC];
                Pack<KV>::unpack(k[Layout::place(lane, c)], piece);
#pragma unroll
                for (int r = 0; r < WARP_ROWS; r++)
#pragma unroll
                    for (int i = 0; i < VEC; i += 4) {
                        const float4 a = *(const float4*)(query + r * D + c * VEC + i);
                        score[r] = fmaf(a.x, piece[i], score[r]);
                        score[r] = fmaf(a.y, piece[i + 1], score[r]);
                        score[r] = fmaf(a.z, piece[i + 2], score[r]);
                        score[r] = fmaf(a.w, piece[i + 3], score[r]);
                    }
            }
        __syncwarp();  // every lane has used the weights before
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            const float s =
                Base::score(score[r], slope[r], lane < TILE ? first + lane : NO_TOKEN, Base::position(row(r)));
            float peak = fmaxf(top[r], s);
#pragma unroll
            for (int step = 16; step; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, step));
            const float shrink = power_of_2(top[r] - peak), weight = s == NEG_INF ? 0 : power_of_2(s - peak);
            top[r] = peak;
            sum[r] = sum[r] * shrink + weight;
            weights[r * 32 + lane] = weight;
#pragma unroll
            for (int i = 0; i < OUTS; i++) acc[r][i] *= shrink;
        }
        __syncwarp();  // the weights of all lanes are there
#pragma unroll 2
        for (int t = 0; t < TILE; t++)
#pragma unroll
            for (int j = 0; j < LANE_WORDS; j++) {
                const int word = j * 32 + lane;
                if (WORDS % 32 && word >= WORDS) break;
                float piece[SPLIT];
                split_word(((const unsigned*)(v + Layout::place(t, word / 4)))[word % 4], piece);
#pragma unroll
                for (int r = 0; r < WARP_ROWS; r++)
#pragma unroll
                    for (int i = 0; i < SPLIT; i++)
                        acc[r][j * SPLIT + i] = fmaf(weights[r * 32 + t], piece[i], acc[r][j * SPLIT + i]);
            }
    }
    __device__ __forceinline__ static void split_word(unsigned word, float (&out)[SPLIT]) {
        if constexpr (sizeof(KV) == 4) out[0] = __uint_as_float(word);
        else
#pragma unroll
            for (int i = 0; i < SPLIT; i++) out[i] = to_float(e4m3{(unsigned char)(word >> 8 * i)});
    }

    __device__ __forceinline__ void finish() {
        unsigned broken = 0;  // a bit for each row of the warp
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
#pragma unroll
            for (int step = 16; step; step /= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], step);
            const long long to = Base::query_row(row(r));
            if (to < 0) continue;
            const float factor = sum[r] == 0 ? 0 : p.v_scale / sum[r];
#pragma unroll
            for (int i = 0; i < OUTS; i++) {
                const int d = (i / SPLIT * 32 + lane) * SPLIT + i % SPLIT;
                const float value = acc[r][i] * factor;
                if (d < D) from_float(value, ((Q*)p.out)[to * D + d]);
                if (d < D && value != value) broken |= 1u << r;
            }
            if (lane) continue;
            if (p.lse) p.lse[to] = logarithm(top[r], sum[r]);
            query[r] = top[r], query[WARP_ROWS + r] = factor;  // for the rows that are done again
        }
        broken = any_bits(broken);
#pragma unroll 1
        for (int r = 0; r < WARP_ROWS; r++)
            if (broken >> r & 1) attend_alone<KV, Q, D>((const Base&)*this, row(r), query[r], query[WARP_ROWS + r]);
    }
};

// ---- one block of threads, from beginning to end ----------------------------------------------------------

template <class Core> __host__ __device__ constexpr int tile_pieces() { return Core::TILE * Core::Layout::PITCH; }
template <class Core> __host__ __device__ constexpr int prefill_shared_bytes() {
    return 2 * Core::TILE * 8 + 4 * tile_pieces<Core>() * 16 + Core::OWN_BYTES;
}

template <class Core> __global__ void __launch_bounds__(Core::THREADS, 1)
    paged_prefill(const __grid_constant__ PrefillParams p) {
    constexpr int TILE = Core::TILE, CHUNKS = Core::CHUNKS, PIECES = tile_pieces<Core>();
    long long* const rows = (long long*)dynamic_shared();  // [2][TILE], where the tokens of a tile are
    uint4* const tiles = (uint4*)(rows + 2 * TILE);        // [2][K, V][PIECES]
    Core core(p, (char*)(tiles + 4 * PIECES));
    if (core.surplus()) return;

    auto fetch = [&](int stage, int first) {
        uint4* k = tiles + stage * 2 * PIECES;
#pragma unroll
        for (int i = threadIdx.x; i < TILE * CHUNKS; i += Core::THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, to = Core::Layout::place(row, chunk);
            const long long from = rows[stage * TILE + row] + chunk;
            copy_16(k + to, (const uint4*)p.k + from, first + row < core.end);
            copy_16(k + PIECES + to, (const uint4*)p.v + from, first + row < core.end);
        }
        copy_commit();
    };
    if (threadIdx.x < 2 * TILE) rows[threadIdx.x] = core.cache_row(core.begin + threadIdx.x);
    core.load_query();
    __syncthreads();  // the rows of the first two tiles are there
    fetch(0, core.begin);
    int stage = 0;
    for (int first = core.begin; first < core.end; first += TILE, stage ^= 1) {
        copy_wait<0>();
        __syncthreads();  // this tile is there, and the one before has been used
        fetch(stage ^ 1, first + TILE);
        long long row = 0;  // the table is read two tiles ahead
        if (threadIdx.x < TILE) row = core.cache_row(first + 2 * TILE + threadIdx.x);
        core.attend(tiles + stage * 2 * PIECES, tiles + stage * 2 * PIECES + PIECES, first);
        if (threadIdx.x < TILE) rows[stage * TILE + threadIdx.x] = row;
    }
    copy_wait<0>();
    core.finish();
}

}  // namespace paged
