// launch.h: start a kernel, on a GPU (nvcc) or under the shim (g++).
#pragma once
#include "device.cuh"
#if !SIMT_HOST
#include <cuda_runtime.h>
#endif

namespace paged {

template <class Params>
int launch(void (*kernel)(Params), dim3 grid, unsigned threads, int shared_bytes, const Params& p, void* stream) {
    if (!grid.x || !grid.y || !grid.z) return 0;
#if SIMT_HOST
    simt::launch(grid, {threads}, shared_bytes, [&] { kernel(p); }, {reinterpret_cast<std::uint64_t>(stream)});
    return 0;
#else
    if (int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes))
        return error;
    void* arguments[] = {(void*)&p};
    return cudaLaunchKernel((const void*)kernel, grid, dim3(threads), arguments, shared_bytes, (cudaStream_t)stream);
#endif
}

}  // namespace paged
