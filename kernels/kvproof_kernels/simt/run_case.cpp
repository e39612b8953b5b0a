// run_case.cpp: run one kernel under the shim on one case.
//
//     run_case KERNEL.so FUNCTION CASE
//
// A case, written by shim_case.py, is a file that holds the memory of a call: parameters and buffers between red zones,
// then tables of what is where. The function gets the address of the parameters and the seed. Its pointers are turned
// into addresses; under AddressSanitizer nothing but the live ranges can be touched; afterwards nothing but the
// writable ranges may have changed, and these go back into the file.
#include "simt.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <initializer_list>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)
#define ASAN_UNPOISON_MEMORY_REGION(p, n)
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(SIMT_TSAN)
#include <sanitizer/common_interface_defs.h>
#define SANITIZED 1
#endif

extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace {

using Word = std::int64_t;
constexpr Word MARK = 0x31657361632d766b;  // "kv-case1"
constexpr Word SPARSE = 1 << 20;           // in a sparse case, wider gaps are neither poisoned nor compared

// All places are bytes from the start of the file. After `tables` come the pointers, the buffers, the ranges.
struct Header {
    Word mark, seed, params, sparse, tables, pointers, buffers, ranges;
};
struct Buffer {
    Word place, bytes;
    char name[16];
};
struct Range {  // in order of place, apart from one another
    Word place, bytes, writable;
};

char* image;  // the memory that the kernel sees
const Header* header;
const Buffer* buffers;

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "run_case: %s\n", what);
    std::_Exit(2);
}

char* map(int file, std::size_t size) {
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) fail("the case cannot be mapped");
    return static_cast<char*>(at);
}

// Say which CUDA thread runs, and what lies at an address.
void say_where(const void* address) {
    if (simt::self) {
        const dim3 b = simt::self->block_idx, t = simt::self->thread_idx;
        std::fprintf(stderr, "simt: in block (%u,%u,%u), thread (%u,%u,%u)\n", b.x, b.y, b.z, t.x, t.y, t.z);
    }
    const Word at = static_cast<const char*>(address) - image;
    if (!address || at < 0 || at >= header->tables) return;
    const Buffer* near = buffers;
    for (const Buffer* b = buffers; b < buffers + header->buffers; b++)
        if (b->place <= at) near = b;
    std::fprintf(stderr, "simt: that is byte %lld of %.16s, which has %lld\n", (long long)(at - near->place),
                 near->name, (long long)near->bytes);
}

#if SANITIZED
void at_death() {
#if defined(__SANITIZE_ADDRESS__)
    say_where(__asan_report_present() ? __asan_get_report_address() : nullptr);
#else
    say_where(nullptr);
#endif
}
#else
// A sanitizer has its own handler.
void at_signal(int signal, siginfo_t* info, void*) {
    std::fprintf(stderr, "simt: memory: signal %d at address %p\n", signal, info->si_addr);
    say_where(info->si_addr);
    simt::say_frames();
    std::_Exit(70);
}
#endif

void watch_faults() {
#if SANITIZED
    __sanitizer_set_death_callback(at_death);
#else
    static char stack[64 << 10];
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action{};
    action.sa_sigaction = at_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(signal, &action, nullptr);
#endif
}

// Call `visit` with the first byte and the end of each gap between ranges, all of them or the writable ones.
template <class Visit> void each_gap(const Range* ranges, bool writable_only, const Visit& visit) {
    Word from = sizeof(Header);
    for (Word i = 0; i <= header->ranges; i++) {
        if (i < header->ranges && writable_only && !ranges[i].writable) continue;
        const Word to = i < header->ranges ? ranges[i].place : header->tables;
        if (to > from && !(header->sparse && to - from > SPARSE)) visit(from, to);
        if (i < header->ranges) from = to + ranges[i].bytes;
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) fail("usage: run_case KERNEL.so FUNCTION CASE");
    void* library = dlopen(argv[1], RTLD_NOW);
    if (!library) fail(dlerror());
    const auto kernel = reinterpret_cast<int (*)(const void*, std::uint64_t)>(dlsym(library, argv[2]));
    if (!kernel) fail(dlerror());
    const auto parameter_bytes = reinterpret_cast<int (*)()>(dlsym(library, (std::string(argv[2]) + "_bytes").c_str()));
    if (!parameter_bytes) fail(dlerror());
    const int file = open(argv[3], O_RDWR);
    struct stat status;
    if (file < 0 || fstat(file, &status) || status.st_size < Word(sizeof(Header))) fail("the case cannot be read");
    image = map(file, status.st_size);
    char* const original = map(file, status.st_size);
    header = reinterpret_cast<const Header*>(original);
    if (header->mark != MARK) fail("the file is not a case");
    const auto* pointers = reinterpret_cast<const Word*>(original + header->tables);
    buffers = reinterpret_cast<const Buffer*>(pointers + header->pointers);
    const auto* ranges = reinterpret_cast<const Range*>(buffers + header->buffers);
    for (const Buffer* b = buffers; b < buffers + header->buffers; b++)
        if (b->place == header->params && b->bytes != parameter_bytes())
            fail("the parameters have another size than the kernel's struct");
    for (char* memory : {image, original})
        for (Word i = 0; i < header->pointers; i++)
            *reinterpret_cast<Word*>(memory + pointers[i]) += reinterpret_cast<Word>(image);

    watch_faults();
    each_gap(ranges, false, [](Word from, Word to) {
        ASAN_POISON_MEMORY_REGION(image + from, to - from);
        (void)from, (void)to;
    });
    if (kernel(image + header->params, header->seed)) fail("the launch was refused");
    ASAN_UNPOISON_MEMORY_REGION(image, header->tables);
    each_gap(ranges, true, [original](Word from, Word to) {
        if (std::memcmp(image + from, original + from, to - from) == 0) return;
        while (image[from] == original[from]) from++;
        std::fprintf(stderr, "simt: memory: the kernel wrote where it must not\n");
        say_where(image + from);
        std::_Exit(70);
    });
    for (const Range* r = ranges; r < ranges + header->ranges; r++)
        if (r->writable && pwrite(file, image + r->place, r->bytes, r->place) != r->bytes)
            fail("the result cannot be written");
    std::_Exit(0);  // without leak checks and destructors, which would cost more than most cases
}
