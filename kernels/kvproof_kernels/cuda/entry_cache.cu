// entry_cache.cu: the kernels of cache.cuh behind a C interface, as entry.cu. Which formats they convert is said by
//   -DKVPROOF_KV=e4m3 -DKVPROOF_SOURCE=bf16
#include "cache.cuh"
#include "launch.h"

using namespace paged;

extern "C" int kvproof_write_bytes() { return sizeof(WriteParams); }
extern "C" int kvproof_copy_blocks_bytes() { return sizeof(CopyParams); }

extern "C" int kvproof_write(const WriteParams* p, void* stream) {
    return launch(paged_write<KVPROOF_KV, KVPROOF_SOURCE>, dim3(p->tokens), CACHE_THREADS, 0, *p, stream);
}

extern "C" int kvproof_copy_blocks(const CopyParams* p, void* stream) {
    return launch(paged_copy_blocks, dim3(p->blocks_per_cache, p->cache_count), CACHE_THREADS, 0, *p, stream);
}
