// params.h: a call of decode or prefill, as Python hands it over (mirrored in cpu.py).
#pragma once

#include <cstdint>

struct Params {
    const void *q, *k, *v;  // q [tokens, query_heads, head_dim]
    void* out;              // as q
    float* lse;             // [tokens, query_heads]
    const int32_t *table, *seq_lens, *cu_queries;
    const float* alibi;                                             // [query_heads] or null
    int64_t stride_block, stride_token, stride_head, table_stride;  // in elements
    int64_t bad_row, bad_value;                                     // set when Status is not OK
    int32_t batch, query_heads, kv_heads, head_dim, block_size, blocks, table_columns;
    int32_t window, split_tokens, threads;   // window 0: off
    int32_t token_major;                     // the heads of a token lie together
    float scale, softcap, k_scale, v_scale;  // softcap 0: off
};

enum Status { OK = 0, BAD_LENGTH = 1, BAD_BLOCK = 2, BAD_QUERIES = 3 };

// Every number that becomes an address is looked at first; entries out of sight may hold anything.
inline Status check(Params& p) {
    const int64_t room = int64_t(p.table_columns) * p.block_size;
    for (int b = 0; b < p.batch; b++) {
        const int64_t length = p.seq_lens[b];
        const int64_t queries = p.cu_queries ? int64_t(p.cu_queries[b + 1]) - p.cu_queries[b] : 1;
        p.bad_row = b;
        p.bad_value = length;
        if (length < 0 || length > room) return BAD_LENGTH;
        p.bad_value = queries;
        if (p.cu_queries && (queries < 0 || queries > length)) return BAD_QUERIES;
        const int64_t first = length - queries + 1 - p.window;  // the oldest position seen by the first query
        for (int64_t c = p.window && first > 0 ? first / p.block_size : 0; c * p.block_size < length; c++) {
            p.bad_value = p.table[b * p.table_stride + c];
            if (p.bad_value < 0 || p.bad_value >= p.blocks) return BAD_BLOCK;
        }
    }
    return OK;
}
