// attention.cpp: paged decode and prefill for one kind of cache and one head size, behind a C ABI.
// Macros: KV, the element of the cache (float, bf16, f16, e4m3), and HEAD_DIM, 0 for any multiple of 8.
#include "decode.h"
#include "prefill.h"

namespace {

using Q = std::conditional_t<std::is_same_v<KV, e4m3>, bf16, KV>;

template <int G> void decode(const Params& p) { Decode<KV, Q, HEAD_DIM, G>(p).run(); }

}  // namespace

extern "C" int kvproof_params_size() { return sizeof(Params); }

extern "C" int kvproof_decode(Params* p) {
    const Status status = check(*p);
    if (status != OK) return status;
    const int group = p->query_heads / p->kv_heads;
    (group == 1 ? decode<1> : group == 2 ? decode<2> : decode<4>)(*p);
    return OK;
}

extern "C" int kvproof_prefill(Params* p) {
    const Status status = check(*p);
    if (status != OK) return status;
    Prefill<KV, Q, HEAD_DIM>(*p).run();
    return OK;
}
