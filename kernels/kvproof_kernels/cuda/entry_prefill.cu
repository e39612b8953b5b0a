// entry_prefill.cu: one prefill kernel behind a C interface, as entry.cu. Which one it is, is said by
//   -DKVPROOF_CORE="PrefillTensor<bf16, 128, 0>"
#include "launch.h"
#include "prefill.cuh"

using namespace paged;
using Core = KVPROOF_CORE;

extern "C" int kvproof_prefill_bytes() { return sizeof(PrefillParams); }
extern "C" int kvproof_shared_bytes() { return prefill_shared_bytes<Core>(); }

extern "C" int kvproof_prefill(const PrefillParams* p, void* stream) {
    const int rows = (int)((long long)p->queries * (p->query_heads / p->kv_heads) / Core::ROWS);
    const dim3 grid(rows + p->sequences, p->kv_heads);
    return launch(paged_prefill<Core>, grid, Core::THREADS, prefill_shared_bytes<Core>(), *p, stream);
}
