// A libcuda without a device, for test_launch.py: what loading and starting a kernel calls, and a line on standard
// output for each of it. Device n has context 0x1000 + n. $FAKE_CUDA is the version it says it has.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult;
typedef void* Handle;

static int made;
static Handle current;

static CUresult not_supported(void) { return 801; }

CUresult cuInit(unsigned flags) { return 0; }
CUresult cuDriverGetVersion(int* version) { return *version = atoi(getenv("FAKE_CUDA")), 0; }
CUresult cuDeviceGetCount(int* count) { return *count = 2, 0; }
CUresult cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
CUresult cuDeviceGetAttribute(int* value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 16 ? 132 : 0;  // compute capability 9.0, 132 multiprocessors
    return 0;
}
CUresult cuDevicePrimaryCtxRetain(Handle* context, int device) { return *context = (Handle)(0x1000L + device), 0; }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
CUresult cuCtxGetCurrent(Handle* context) { return *context = current, 0; }
CUresult cuCtxSetCurrent(Handle context) { return current = context, 0; }
CUresult cuCtxGetDevice(int* device) { return *device = (int)((long)current - 0x1000), 0; }
CUresult cuGetErrorName(CUresult error, const char** name) { return *name = "FAKE", 0; }
CUresult cuGetErrorString(CUresult error, const char** text) { return *text = "fake", 0; }

CUresult cuLibraryLoadData(Handle* library, const void* code, void* jit, void* jit_values, unsigned jit_count,
                           void* options, void* option_values, unsigned option_count) {
    printf("load %.3s\n", (const char*)code + 1);
    return *library = (Handle)(0x2000L + ++made), 0;
}
CUresult cuLibraryUnload(Handle library) { return 0; }
CUresult cuLibraryGetKernel(Handle* kernel, Handle library, const char* name) {
    printf("kernel %s\n", name);
    return *kernel = (Handle)(0x3000L + ++made), 0;
}
CUresult cuKernelGetParamInfo(Handle kernel, size_t index, size_t* offset, size_t* size) {
    const char* bytes = getenv("FAKE_BYTES");
    return *offset = 0, *size = bytes ? atoi(bytes) : 16, 0;
}
CUresult cuKernelSetAttribute(int attribute, int value, Handle kernel, int device) {
    printf("attribute %d %d device %d\n", attribute, value, device);
    return 0;
}
CUresult cuLaunchKernel(Handle kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, Handle stream, void** params, void** extra) {
    if (bx > 1024) return 1;
    printf("launch %u,%u,%u %u,%u,%u shared %u stream %ld context %lx params", gx, gy, gz, bx, by, bz, shared,
           (long)stream, (long)current);
    for (int i = 0; i < 16; i++) printf(" %02x", ((unsigned char*)params[0])[i]);
    printf("\n");
    fflush(stdout);
    return 0;
}

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long flags, int* status) {
    char second[128];
    void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    snprintf(second, sizeof second, "%s_v2", name);
    *function = dlsym(self, name);
    if (!*function) *function = dlsym(self, second);
    if (!*function) *function = (void*)not_supported;
    if (status) *status = 0;
    return 0;
}
