// params.h: what a decode call hands to the kernels. Plain C, mirrored field by field in variant.py.
#pragma once

namespace paged {

struct Params {
    const void* q;           // [sequences, query_heads, D], contiguous
    const void* k;           // row of (block, token, KV head): k + 16 bytes * (block*stride_block + ...)
    const void* v;           // with K's strides
    void* out;               // like q
    float* lse;              // [sequences, query_heads], natural logarithm; may be null
    float* part_out;         // [sequences, query_heads, splits, D]; unused with one split
    float* part_lse;         // [sequences, query_heads, splits], base 2
    const int* table;        // block table: [sequences, table_stride]
    const int* seq_lens;     // [sequences], in tokens
    const float* alibi;      // [query_heads], slopes; read with the feature only
    long long table_stride;  // entries
    unsigned stride_block;   // strides in pieces of 16 bytes: 32 bits reach 64 GiB, a product has 64
    unsigned stride_token;
    unsigned stride_head;
    unsigned block_magic;  // ceil(2^32 / block_size), 0 for block_size 1: division by multiplication
    int block_size;
    int sequences;
    int query_heads;
    int kv_heads;
    int splits;         // blocks of threads a sequence and head tile may use
    int split_tokens;   // tokens each of them takes
    int window;         // tokens seen, counted from the end; 2^31 - 1 for all
    float score_scale;  // of q.k: to the logarithm's base 2, or to tanh's argument with softcap
    float softcap;      // what tanh is multiplied by, base 2
    float v_scale;
};

}  // namespace paged
