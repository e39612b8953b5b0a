// simt.cpp: the fiber scheduler behind simt.h. Compile it without -fsanitize=thread (its own bookkeeping is ordered by
// the scheduler, which ThreadSanitizer is told to ignore); -DSIMT_TSAN announces the fibers to ThreadSanitizer.
#include "simt.h"
#include <array>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <execinfo.h>
#include <iterator>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_ASAN 1
#endif
#if defined(SIMT_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

// Switch stacks: push the callee-saved registers, swap stack pointers, pop, return.
extern "C" void simt_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl simt_switch
.type simt_switch,@function
simt_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.size simt_switch,.-simt_switch
)");
constexpr int FRAME = 8, RETURN = 6;  // words of a new stack's frame, and where it returns to
#elif defined(__aarch64__)
asm(R"(
.text
.globl simt_switch
simt_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0];   stp x21, x22, [sp, #16];  stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48];  stp x27, x28, [sp, #64];  stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96];    stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0];   ldp x21, x22, [sp, #16];  ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48];  ldp x27, x28, [sp, #64];  ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96];    ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
constexpr int FRAME = 20, RETURN = 11;
#else
#error "simt_switch is written for x86-64 and aarch64"
#endif

namespace simt {
Thread* self;

namespace {

constexpr std::size_t STACK = 128 << 10, GUARD = 4 << 10;

struct Copy {
    void* target;
    const void* source;
    unsigned bytes, zeros;
};

struct Fiber : Thread {
    unsigned index = 0;
    void* sp = nullptr;
    char* stack = nullptr;
    std::vector<std::vector<Copy>> groups;  // committed asynchronous copies, oldest first
    std::vector<Copy> open;                 // issued, not yet committed
    void* fake_stack = nullptr;             // AddressSanitizer's
    void* tsan = nullptr;                   // ThreadSanitizer's
};

struct Meeting {  // lanes of a warp that wait for one another
    unsigned mask = 0, arrived = 0;
    const char* what = nullptr;
    Place where;
    void* payload[32] = {};
};
using Warp = std::array<Meeting, 32>;  // at most one for each lane
struct Barrier {
    unsigned arrived = 0;
    Place where;
    std::vector<unsigned> waiting;
};

struct Block {  // nothing here is allocated while fibers run: ThreadSanitizer watches the allocator
    std::vector<Fiber> fibers;
    std::vector<unsigned> ready;
    std::vector<Warp> warps;
    Barrier barrier;
    unsigned live = 0, shared_bytes = 0;
    std::unique_ptr<char[]> shared;  // own allocation: AddressSanitizer guards both ends
    std::mt19937_64 rng;
    Entry entry = nullptr;
    const void* kernel = nullptr;
    void* scheduler_sp = nullptr;
    void* scheduler_fake = nullptr;
    const void* scheduler_stack = nullptr;
    std::size_t scheduler_size = 0;
    void* scheduler_tsan = nullptr;
};
Block* block;

// Stacks, each with its ThreadSanitizer fiber, reused from block to block. A fiber's history orders what it does after
// what it did, so successive blocks take different sets: their races stay visible.
struct Seat {
    char* stack;
    void* tsan;
};

// ThreadSanitizer's view of the fibers: memory is ordered where these are called and nowhere else.
#if defined(SIMT_TSAN)
std::vector<Seat> seats[4];
void publish(void* at) { __tsan_release(at); }
void observe(void* at) { __tsan_acquire(at); }
extern "C" void AnnotateIgnoreReadsBegin(const char*, int), AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int), AnnotateIgnoreWritesEnd(const char*, int);
struct Unwatched {  // registers pass between lanes here, not memory
    Unwatched() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
    ~Unwatched() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
};
#else
std::vector<Seat> seats[1];
void publish(void*) {}
void observe(void*) {}
struct Unwatched {};
#endif

Fiber& current() { return *static_cast<Fiber*>(self); }

const char* name(const Place& where) {
    const char* slash = std::strrchr(where.file, '/');
    return slash ? slash + 1 : where.file;
}

// Report a fault of the kernel and stop. `kind` is what a caller of the shim is told: memory, race or barrier.
[[noreturn]] void stop(const char* kind, const char* why) {
    const dim3 b = self->block_idx, t = self->thread_idx;
    std::fprintf(stderr, "simt: %s: %s\n", kind, why);
    std::fprintf(stderr, "simt: in block (%u,%u,%u), thread (%u,%u,%u)\n", b.x, b.y, b.z, t.x, t.y, t.z);
    const Barrier& barrier = block->barrier;
    if (barrier.arrived)
        std::fprintf(stderr, "simt: %u of %u threads wait at syncthreads, %s:%d\n", barrier.arrived, block->live,
                     name(barrier.where), barrier.where.line);
    for (std::size_t w = 0; w < block->warps.size(); w++)
        for (const Meeting& m : block->warps[w])
            if (m.arrived)
                std::fprintf(stderr, "simt: warp %zu: lanes %08x of %08x wait at %s, %s:%d\n", w, m.arrived, m.mask,
                             m.what, name(m.where), m.where.line);
    say_frames();
    std::_Exit(70);
}
[[noreturn]] void stop(const char* kind, const char* why, const char* what, Place where) {
    std::fprintf(stderr, "simt: at %s, %s:%d\n", what, name(where), where.line);
    stop(kind, why);
}

bool same(const Place& a, const Place& b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

void suspend([[maybe_unused]] bool last = false) {  // back to the scheduler
    Fiber& f = current();
#if SIMT_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &f.fake_stack, block->scheduler_stack, block->scheduler_size);
#endif
#if defined(SIMT_TSAN)
    __tsan_switch_to_fiber(block->scheduler_tsan, __tsan_switch_to_fiber_no_sync);
#endif
    simt_switch(&f.sp, block->scheduler_sp);
#if SIMT_ASAN
    __sanitizer_finish_switch_fiber(f.fake_stack, nullptr, nullptr);
#endif
}

void resume(Fiber& f) {
    self = &f;
#if SIMT_ASAN
    __sanitizer_start_switch_fiber(&block->scheduler_fake, f.stack, STACK);
#endif
#if defined(SIMT_TSAN)
    __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    simt_switch(&block->scheduler_sp, f.sp);
#if SIMT_ASAN
    __sanitizer_finish_switch_fiber(block->scheduler_fake, nullptr, nullptr);
#endif
}

void release_barrier() {
    Barrier& b = block->barrier;
    if (!b.arrived || b.arrived != block->live) return;
    for (unsigned i : b.waiting) block->ready.push_back(i);  // not insert(): ThreadSanitizer watches memmove too
    b.waiting.clear();
    b.arrived = 0;
}

void finish_copies(Fiber& f, std::size_t keep) {
    while (f.groups.size() > keep) {
        for (const Copy& c : f.groups.front()) {
            std::memcpy(c.target, c.source, c.bytes);
            std::memset(static_cast<char*>(c.target) + c.bytes, 0, c.zeros);
        }
        f.groups.erase(f.groups.begin());
    }
}

void fiber_main() {
#if SIMT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &block->scheduler_stack, &block->scheduler_size);
#endif
    observe(block);
    block->entry(block->kernel);
    Fiber& f = current();
    if (!f.groups.empty() || !f.open.empty()) stop("race", "a thread ended with asynchronous copies in flight");
    block->live--;
    release_barrier();      // CUDA's barrier counts only threads that have not exited
    publish(&block->live);  // for launch(), not for threads that start later
    suspend(true);
    std::abort();
}

void prepare(Fiber& f) {
#if SIMT_ASAN
    __asan_unpoison_memory_region(f.stack, STACK);
#endif
    void** frame = reinterpret_cast<void**>(f.stack + STACK) - FRAME;
    std::memset(frame, 0, FRAME * sizeof(void*));
    frame[RETURN] = reinterpret_cast<void*>(fiber_main);
    f.sp = frame;
}

char* new_stack() {
    void* base = mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base, GUARD, PROT_NONE)) {
        std::perror("simt: no memory for stacks");
        std::exit(71);
    }
    return static_cast<char*>(base) + GUARD;
}

void run_block(Block& b, dim3 grid, dim3 dim, dim3 idx, unsigned shared_bytes, std::uint64_t seed) {
    block = &b;
    b.rng.seed(seed);
    const unsigned n = dim.x * dim.y * dim.z;
    b.live = n;
    b.shared_bytes = shared_bytes;
    b.shared.reset(new char[shared_bytes]);
    std::memset(b.shared.get(), 0xFF, shared_bytes);  // NaN in every float format
    b.warps.resize((n + 31) / 32);
    b.fibers.resize(n);
    b.ready.reserve(n);
    b.barrier.waiting.reserve(n);
    static unsigned turn;
    auto& seat = seats[turn++ % std::size(seats)];
    while (seat.size() < n) seat.push_back({new_stack(), nullptr});
#if defined(SIMT_TSAN)
    b.scheduler_tsan = __tsan_get_current_fiber();
    for (unsigned i = 0; i < n; i++)
        if (!seat[i].tsan) {
            char label[32];
            std::snprintf(label, sizeof label, "CUDA thread %u", i);
            seat[i].tsan = __tsan_create_fiber(0);
            __tsan_set_fiber_name(seat[i].tsan, label);
        }
#endif
    for (unsigned i = 0; i < n; i++) {
        Fiber& f = b.fibers[i];
        f.index = i;
        f.lane = i % 32;
        f.thread_idx = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
        f.block_idx = idx;
        f.block_dim = dim;
        f.grid_dim = grid;
        f.stack = seat[i].stack;
        f.tsan = seat[i].tsan;
        prepare(f);
        b.ready.push_back(i);
    }
    publish(&b);
    while (!b.ready.empty()) {
        std::swap(b.ready[b.rng() % b.ready.size()], b.ready.back());
        Fiber& f = b.fibers[b.ready.back()];
        b.ready.pop_back();
        resume(f);
    }
    if (b.live) stop("barrier", "deadlock: every thread waits for another");
}

}  // namespace

void say_frames() {
    void* frames[16];
    for (int i = 0, n = backtrace(frames, 16); i < n; i++) {
        const char* pc = static_cast<char*>(frames[i]) - 1;  // in the call, not behind it
        Dl_info module{};
        if (dladdr(pc, &module) && module.dli_fname)
            std::fprintf(stderr, "simt: pc %#zx of %s\n", std::size_t(pc - static_cast<char*>(module.dli_fbase)),
                         module.dli_fname);
    }
}

void warp_collective(unsigned mask, void* payload, WarpFn fn, const char* what, Place where) {
    Fiber& f = current();
    const unsigned first = f.index - f.lane, lanes = min<unsigned>(32, block->fibers.size() - first);
    if (lanes < 32) mask &= (1u << lanes) - 1;
    if (!(mask >> f.lane & 1)) stop("barrier", "a lane calls a warp collective whose mask leaves it out", what, where);
    Meeting* m = nullptr;
    for (Meeting& each : block->warps[first / 32])  // the one under way, or else a free one
        if (each.arrived ? each.mask & mask : !m) m = &each;
    if (!m->arrived) m->mask = mask, m->what = what, m->where = where;
    if (m->mask != mask || m->what != what || !same(m->where, where))
        stop("barrier", "lanes of a warp meet at different collectives", what, where);
    m->payload[f.lane] = payload;
    m->arrived |= 1u << f.lane;
    if (!fn) publish(m);
    if (m->arrived == mask) {
        if (fn) {
            [[maybe_unused]] const Unwatched here;
            fn(m->payload, mask);
        }
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1) block->ready.push_back(first + i);
        m->arrived = 0;
    }
    suspend();
    if (!fn) observe(m);
}

void block_barrier(Place where) {
    Barrier& b = block->barrier;
    if (!b.arrived) b.where = where;
    if (!same(b.where, where)) stop("barrier", "threads of a block meet at different barriers", "syncthreads", where);
    b.waiting.push_back(current().index);
    b.arrived++;
    publish(&b);
    release_barrier();
    suspend();
    observe(&b);
}

void* shared_memory() { return block->shared.get(); }

void copy_async(void* target, const void* source, unsigned bytes, unsigned zeros) {
    const std::size_t size = bytes + zeros, at = static_cast<char*>(target) - block->shared.get();
    if (at > block->shared_bytes || size > block->shared_bytes - at)
        stop("memory", "an asynchronous copy ends outside shared memory");
    if (at % size || (bytes && reinterpret_cast<std::uintptr_t>(source) % size))
        stop("memory", "an asynchronous copy is not aligned to its size");
#if SIMT_ASAN
    if (bytes) {  // reads the source now, while the sanitizer can still name the line that asks for it
        const void* poisoned = __asan_region_is_poisoned(const_cast<void*>(source), bytes);
        [[maybe_unused]] volatile char seen = *static_cast<const char*>(poisoned ? poisoned : source);
    }
#endif
    std::memset(target, 0xFF, size);  // until it has been waited for, nothing may rely on it
    current().open.push_back({target, source, bytes, zeros});
}
void copy_commit() {
    Fiber& f = current();
    f.groups.push_back(std::move(f.open));
    f.open.clear();
    if (block->rng() % 4 == 0) finish_copies(f, 0);  // the hardware may be early
}
void copy_wait(unsigned groups_left) { finish_copies(current(), groups_left); }

void launch(dim3 grid, dim3 dim, unsigned shared_bytes, Entry entry, const void* kernel, std::uint64_t seed) {
    std::vector<unsigned> order(grid.x * grid.y * grid.z);
    for (unsigned i = 0; i < order.size(); i++) order[i] = i;
    std::mt19937_64 rng(seed);
    for (std::size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[rng() % i]);
    std::vector<std::unique_ptr<Block>> blocks;
    for (unsigned i : order) {
        blocks.push_back(std::make_unique<Block>());
        blocks.back()->entry = entry;
        blocks.back()->kernel = kernel;
        const dim3 idx = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
        run_block(*blocks.back(), grid, dim, idx, shared_bytes, rng());
#if !defined(SIMT_TSAN)
        blocks.clear();
#endif
    }
    for (auto& b : blocks) observe(&b->live);  // only now: nothing orders the blocks of one launch
    block = nullptr;
    self = nullptr;
}

}  // namespace simt
