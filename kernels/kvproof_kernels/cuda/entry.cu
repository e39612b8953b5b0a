// entry.cu: one decode kernel behind a C interface. nvcc builds it for a GPU; g++ -x c++ runs the same
// kernel through simt.h. Which one it is, is said by
//   -DKVPROOF_CORE="Tensor<bf16, bf16, 128, 4, 3, 0>" -DKVPROOF_TECHNIQUES=15
#include "decode.cuh"
#include "launch.h"

using namespace paged;
using Core = KVPROOF_CORE;

extern "C" int kvproof_decode_bytes() { return sizeof(Params); }
extern "C" int kvproof_shared_bytes() { return shared_bytes<Core>(); }

// Attention, and the combination of the splits where there are several. `stream` is a CUDA stream, under the
// shim the seed of the thread order. Returns 0 or a CUDA error.
extern "C" int kvproof_decode(const Params* p, void* stream) {
    const int tiles = (p->query_heads / p->kv_heads + Core::HEADS - 1) / Core::HEADS;
    const dim3 grid(p->splits, p->kv_heads * tiles, p->sequences);
    const int error =
        launch(paged_decode<Core, KVPROOF_TECHNIQUES>, grid, Core::THREADS, shared_bytes<Core>(), *p, stream);
    if (error || p->splits == 1) return error;
    return launch(paged_combine<Core::Q, Core::D>, dim3(p->query_heads, p->sequences), Core::D, 0, *p, stream);
}
