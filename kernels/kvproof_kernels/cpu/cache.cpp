// cache.cpp: writes into the cache, copies of blocks, what the CPU has, and how fast memory can be read.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace {

struct Write {
    const void *k, *v;  // [tokens, kv_heads, head_dim], contiguous
    void *k_cache, *v_cache;
    const int64_t* slots;
    int64_t tokens, blocks, block_size, kv_heads, head_dim;
    int64_t stride_block, stride_token, stride_head;  // in elements
    int64_t bad_row;
    int32_t item_bytes, to_fp8;  // of the cache; to_fp8: k and v are bf16, stored divided by their scale
    float k_scale, v_scale;
};

uint8_t to_e4m3(float x) {  // nearest, ties to even, saturating at 448
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint8_t sign = bits >> 24 & 0x80;
    const float size = std::fabs(x);
    if (x != x) return sign | 0x7F;
    if (size >= 448.0f) return sign | 0x7E;
    // In float the spacing of e4m3 numbers of this size is 2^(exponent - 3), for subnormals 2^-9.
    const int exponent = std::max(-6, size > 0 ? std::ilogb(size) : -6);
    const float steps = std::nearbyint(std::ldexp(size, 3 - exponent));  // 8..16, subnormal 0..8
    return sign | uint8_t(((exponent + 6) << 3) + int(steps));
}

void store_row(const char* from, char* to, const Write& w, float scale) {
    if (!w.to_fp8) {
        std::memcpy(to, from, w.head_dim * w.item_bytes);
        return;
    }
    for (int64_t i = 0; i < w.head_dim; i++) {
        uint16_t half;
        std::memcpy(&half, from + 2 * i, 2);
        const uint32_t bits = uint32_t(half) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        to[i] = char(to_e4m3(x / scale));
    }
}

}  // namespace

extern "C" int kvproof_write_size() { return sizeof(Write); }

// 0, or 1 with bad_row when a slot is outside the cache; then nothing has been written.
extern "C" int kvproof_write(Write* w) {
    for (w->bad_row = 0; w->bad_row < w->tokens; w->bad_row++) {
        const int64_t slot = w->slots[w->bad_row];
        if (slot < -1 || slot >= w->blocks * w->block_size) return 1;
    }
    const int64_t from_row = w->head_dim * (w->to_fp8 ? 2 : w->item_bytes);
    for (int64_t t = 0; t < w->tokens; t++) {
        const int64_t slot = w->slots[t];
        if (slot < 0) continue;
        const int64_t at = slot / w->block_size * w->stride_block + slot % w->block_size * w->stride_token;
        for (int64_t h = 0; h < w->kv_heads; h++) {
            const int64_t from = (t * w->kv_heads + h) * from_row, to = (at + h * w->stride_head) * w->item_bytes;
            store_row(static_cast<const char*>(w->k) + from, static_cast<char*>(w->k_cache) + to, *w, w->k_scale);
            store_row(static_cast<const char*>(w->v) + from, static_cast<char*>(w->v_cache) + to, *w, w->v_scale);
        }
    }
    return 0;
}

// One pair after another: what an earlier pair has copied, a later one may copy on.
extern "C" void kvproof_copy_blocks(char* cache, const int64_t* pairs, int64_t count, int64_t bytes, int64_t stride) {
    for (int64_t i = 0; i < count; i++)
        if (pairs[2 * i] != pairs[2 * i + 1])
            std::memcpy(cache + pairs[2 * i + 1] * stride, cache + pairs[2 * i] * stride, bytes);
}

// Bits: 1 AVX2 with FMA and F16C, 2 AVX-512 F, BW, DQ, VL, 4 its bf16.
extern "C" int kvproof_instruction_sets() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 + 2 * avx512 + 4 * (avx512 && __builtin_cpu_supports("avx512bf16"));
#else
    return 0;
#endif
}

// Reads all of `data` with `threads` threads: the bandwidth that a kernel is compared with.
extern "C" float kvproof_read(const float* data, int64_t n, int threads) {
    typedef float v16 __attribute__((vector_size(64)));
    std::vector<float> sums(threads);
    auto read = [&](int t) {
        v16 all[4] = {};
        const int64_t begin = n / 64 * t / threads, end = n / 64 * (t + 1) / threads;
        for (int64_t i = begin; i < end; i++)
            for (int j = 0; j < 4; j++) {
                v16 x;
                std::memcpy(&x, data + i * 64 + j * 16, sizeof x);
                all[j] += x;
            }
        const v16 sum = (all[0] + all[1]) + (all[2] + all[3]);
        for (int l = 0; l < 16; l++) sums[t] += sum[l];
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; t++) {
        try {
            others.emplace_back(read, t);
        } catch (const std::system_error&) { read(t); }
    }
    read(0);
    for (std::thread& t : others) t.join();
    float total = 0;
    for (float s : sums) total += s;
    return total;
}
