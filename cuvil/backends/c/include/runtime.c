/* The runtime library: thread pool, scratch memory, error flag, CPU features. Compiled once per machine.
 *
 * Pool protocol. The thread that takes `busy` owns the pool for one loop. It fills in the job, raises the ticket of
 * each mailbox that takes part, runs range 0, then every range that its worker has not begun (on a busy machine a
 * worker may not be running at all), and waits for `pending` to reach 0. Whoever raises `taken` to the ticket has
 * the range; a worker that comes late finds it taken. Everyone who waits spins first (neighbouring kernels of a
 * model are microseconds apart) and then sleeps on a condition variable. A sleeper sets its flag before it looks at
 * the awaited value a last time; the waker changes the value before it looks at the flag; both are sequentially
 * consistent, so one of them sees the other.
 *
 * Fork. The child has one thread and perhaps locks that threads of the parent held; the atfork handler puts every
 * pool back to its state before the first loop, and threads start again when a loop needs them.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "cuvil/runtime.h"

#define CV_MICROKERNEL_BODIES 1
#include "cuvil/microkernel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define CACHE_LINE 64
#define SPIN_NANOSECONDS 30000 /* about what a sleep and a wake-up cost together */
#define THREAD_STACK_BYTES (4u << 20)

typedef struct {
    _Alignas(CACHE_LINE) atomic_uint value;
    atomic_int asleep;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} event;

typedef struct {
    cv_pool *pool;
    pthread_t thread;
    int worker;
    event ticket;      /* rises by one for every range handed to the worker */
    atomic_uint taken; /* the last ticket whose range somebody runs or has run */
} mailbox;

typedef struct {
    cv_body body;
    void *arg;
    int64_t n;
    int64_t ranges;
} job;

struct cv_pool {
    event pending; /* workers that have not finished their range */
    _Alignas(CACHE_LINE) atomic_flag busy;
    atomic_int threads;
    atomic_int stop;
    int workers;
    int spins;
    int start_failed;
    job job;
    mailbox *mailboxes; /* workers - 1 of them: worker w has mailboxes[w - 1] */
    cv_pool *next;
};

/* The worker number of the current thread, and whether it runs inside a parallel loop. */
static _Thread_local int this_worker;
static _Thread_local int inside_loop;

static pthread_mutex_t pools_mutex = PTHREAD_MUTEX_INITIALIZER;
static cv_pool *pools;
static pthread_once_t atfork_once = PTHREAD_ONCE_INIT;

/* ---------------------------------------------------------------- events */

static void event_init(event *e) {
    atomic_init(&e->value, 0);
    atomic_init(&e->asleep, 0);
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
}

static void event_destroy(event *e) {
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->mutex);
}

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Returns when value == target (or, with `differs`, when value != target). */
static void event_wait(event *e, unsigned target, int differs, int spins) {
    if (spins) {
        int64_t start = nanoseconds();
        do {
            for (int i = 0; i < 16; i++) {
                if ((atomic_load_explicit(&e->value, memory_order_acquire) == target) != differs) return;
                pause_cpu();
            }
        } while (nanoseconds() - start < SPIN_NANOSECONDS);
    }
    pthread_mutex_lock(&e->mutex);
    atomic_store(&e->asleep, 1);
    while ((atomic_load(&e->value) == target) == differs) pthread_cond_wait(&e->changed, &e->mutex);
    atomic_store(&e->asleep, 0);
    pthread_mutex_unlock(&e->mutex);
}

static void event_wake(event *e) {
    if (!atomic_load(&e->asleep)) return;
    pthread_mutex_lock(&e->mutex);
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

/* ---------------------------------------------------------------- pool */

static int64_t range_begin(int64_t n, int64_t ranges, int64_t i) {
    int64_t length = n / ranges, longer = n % ranges; /* the first `longer` ranges have one more */
    return i * length + (i < longer ? i : longer);
}

static void run_range(const job *j, int64_t i, int worker) {
    j->body(j->arg, range_begin(j->n, j->ranges, i), range_begin(j->n, j->ranges, i + 1), worker);
}

/* Runs the range of a mailbox's ticket unless somebody else has taken it. */
static void take_range(cv_pool *pool, mailbox *box, unsigned ticket, int worker) {
    unsigned before = ticket - 1;
    if (!atomic_compare_exchange_strong(&box->taken, &before, ticket)) return;
    run_range(&pool->job, box->worker, worker);
    if (atomic_fetch_sub(&pool->pending.value, 1) == 1) event_wake(&pool->pending);
}

static void *worker_main(void *argument) {
    mailbox *box = argument;
    cv_pool *pool = box->pool;
    this_worker = box->worker;
    inside_loop = 1;
    for (unsigned seen = 0;;) {
        event_wait(&box->ticket, seen, 1, pool->spins);
        if (atomic_load(&pool->stop)) return NULL;
        seen = atomic_load(&box->ticket.value);
        take_range(pool, box, seen, box->worker);
    }
}

static void start_threads(cv_pool *pool) {
    if (pool->start_failed) return;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
    sigset_t all, before; /* signals are for the threads of the application */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int threads = atomic_load(&pool->threads);
    for (; threads < pool->workers - 1; threads++) {
        mailbox *box = &pool->mailboxes[threads];
        if (pthread_create(&box->thread, &attributes, worker_main, box)) {
            pool->start_failed = 1; /* the caller runs the ranges of the missing workers */
            break;
        }
        atomic_store(&pool->threads, threads + 1);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static void pool_reset(cv_pool *pool) {
    event_init(&pool->pending);
    atomic_flag_clear(&pool->busy);
    atomic_init(&pool->threads, 0);
    atomic_init(&pool->stop, 0);
    pool->start_failed = 0;
    for (int i = 0; i < pool->workers - 1; i++) {
        mailbox *box = &pool->mailboxes[i];
        box->pool = pool;
        box->worker = i + 1;
        event_init(&box->ticket);
        atomic_init(&box->taken, 0);
    }
}

static void before_fork(void) { pthread_mutex_lock(&pools_mutex); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&pools_mutex); }
static void after_fork_in_child(void) {
    pthread_mutex_init(&pools_mutex, NULL);
    for (cv_pool *pool = pools; pool; pool = pool->next) pool_reset(pool);
    this_worker = 0;
    inside_loop = 0;
}
static void install_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

cv_pool *cv_pool_create(int workers) {
    if (workers < 1) return NULL;
    pthread_once(&atfork_once, install_fork_handlers);
    cv_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool) return NULL;
    memset(pool, 0, sizeof *pool);
    pool->workers = workers;
    /* More threads than processors: whoever spins keeps another from working. */
    pool->spins = workers <= cv_available_cpus();
    if (workers > 1) {
        pool->mailboxes = aligned_alloc(CACHE_LINE, (size_t)(workers - 1) * sizeof *pool->mailboxes);
        if (!pool->mailboxes) {
            free(pool);
            return NULL;
        }
    }
    pool_reset(pool);
    pthread_mutex_lock(&pools_mutex);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&pools_mutex);
    return pool;
}

void cv_pool_destroy(cv_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pools_mutex);
    for (cv_pool **link = &pools; *link; link = &(*link)->next) {
        if (*link == pool) {
            *link = pool->next;
            break;
        }
    }
    pthread_mutex_unlock(&pools_mutex);
    atomic_store(&pool->stop, 1);
    int threads = atomic_load(&pool->threads);
    for (int i = 0; i < threads; i++) {
        atomic_fetch_add(&pool->mailboxes[i].ticket.value, 1);
        event_wake(&pool->mailboxes[i].ticket);
    }
    for (int i = 0; i < threads; i++) pthread_join(pool->mailboxes[i].thread, NULL);
    for (int i = 0; i < pool->workers - 1; i++) event_destroy(&pool->mailboxes[i].ticket);
    event_destroy(&pool->pending);
    free(pool->mailboxes);
    free(pool);
}

int cv_pool_workers(const cv_pool *pool) { return pool->workers; }
int cv_pool_threads(const cv_pool *pool) { return atomic_load(&((cv_pool *)pool)->threads); }

/* ---------------------------------------------------------------- context */

typedef struct {
    void *memory;
    size_t bytes;
} block;

/* Scratch of one worker, on its own cache line: workers look at their blocks at the same time. */
typedef struct {
    _Alignas(CACHE_LINE) block own;
    block shared;
} worker_blocks;

typedef struct {
    cv_ctx base; /* first: kernels see a context as its base */
    cv_pool *pool;
    worker_blocks *blocks;
    atomic_int error_claimed;
    atomic_int error;
    int64_t details[3];
} context;

static void context_fail(cv_ctx *ctx, int code, int64_t a, int64_t b) {
    context *c = (context *)ctx;
    if (code == CV_OK || atomic_exchange(&c->error_claimed, 1)) return;
    c->details[0] = a;
    c->details[1] = b;
    c->details[2] = ctx->site;
    atomic_store_explicit(&c->error, code, memory_order_release);
}

static int context_failed(const cv_ctx *ctx) {
    return atomic_load_explicit(&((const context *)ctx)->error_claimed, memory_order_relaxed);
}

static void *block_of(cv_ctx *ctx, block *b, size_t bytes) {
    if (bytes <= b->bytes && b->memory) return b->memory;
    free(b->memory);
    b->memory = NULL;
    b->bytes = 0;
    size_t rounded = bytes < CACHE_LINE ? CACHE_LINE : bytes + (-bytes & (CACHE_LINE - 1));
    void *memory = NULL;
    if (rounded < bytes || posix_memalign(&memory, CACHE_LINE, rounded)) {
        context_fail(ctx, CV_ENOMEM, bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes, 0);
        return NULL;
    }
    b->memory = memory;
    b->bytes = rounded;
    return memory;
}

static void *context_scratch(cv_ctx *ctx, int worker, size_t bytes) {
    return block_of(ctx, &((context *)ctx)->blocks[worker].own, bytes);
}

static void *context_scratch_shared(cv_ctx *ctx, size_t bytes) {
    return block_of(ctx, &((context *)ctx)->blocks[this_worker].shared, bytes);
}

static void context_parallel(cv_ctx *ctx, int64_t n, int64_t grain, cv_body body, void *arg) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    cv_pool *pool = ((context *)ctx)->pool;
    int64_t ranges = (n - 1) / grain + 1;
    if (ranges > pool->workers) ranges = pool->workers;
    job j = {body, arg, n, ranges};
    if (ranges == 1 || inside_loop || atomic_flag_test_and_set_explicit(&pool->busy, memory_order_acquire)) {
        for (int64_t i = 0; i < ranges; i++) run_range(&j, i, this_worker);
        return;
    }
    if (atomic_load_explicit(&pool->threads, memory_order_relaxed) < pool->workers - 1) start_threads(pool);
    int64_t threads = atomic_load_explicit(&pool->threads, memory_order_relaxed);
    int64_t helpers = ranges - 1 < threads ? ranges - 1 : threads;
    pool->job = j;
    atomic_store(&pool->pending.value, (unsigned)helpers);
    for (int64_t i = 0; i < helpers; i++) {
        atomic_fetch_add(&pool->mailboxes[i].ticket.value, 1);
        event_wake(&pool->mailboxes[i].ticket);
    }
    inside_loop = 1;
    run_range(&j, 0, 0);
    for (int64_t i = helpers + 1; i < ranges; i++) run_range(&j, i, 0);
    for (int64_t i = helpers - 1; i >= 0; i--) {
        take_range(pool, &pool->mailboxes[i], atomic_load(&pool->mailboxes[i].ticket.value), 0);
    }
    inside_loop = 0;
    event_wait(&pool->pending, 0, 0, pool->spins);
    atomic_flag_clear_explicit(&pool->busy, memory_order_release);
}

static _Atomic uint64_t hidden_features;
void cv_hide_features(uint64_t mask) { atomic_store(&hidden_features, mask); }

static void choose_narrow_kernels(cv_ctx *ctx) {
    uint64_t features = cv_cpu_features() & ~atomic_load(&hidden_features);
    (void)features, (void)ctx;
#ifdef CVM_HAS_AVX512_BF16
    if (features & CV_CPU_AVX512_BF16) ctx->bf16 = &cvm_avx512_bf16;
#endif
#ifdef CVM_HAS_AMX_BF16
    if (features & CV_CPU_AMX_BF16) ctx->bf16 = &cvm_amx_bf16;
#endif
}

cv_ctx *cv_ctx_create(cv_pool *pool) {
    context *c = calloc(1, sizeof *c);
    size_t bytes = (size_t)pool->workers * sizeof(worker_blocks);
    worker_blocks *blocks = aligned_alloc(CACHE_LINE, bytes);
    if (!c || !blocks) {
        free(c);
        free(blocks);
        return NULL;
    }
    memset(blocks, 0, bytes);
    c->base = (cv_ctx){.parallel = context_parallel, .scratch = context_scratch,
                       .scratch_shared = context_scratch_shared, .fail = context_fail, .failed = context_failed,
                       .microkernels = &cv_microkernel_table, .workers = pool->workers};
    choose_narrow_kernels(&c->base);
    c->pool = pool;
    c->blocks = blocks;
    return &c->base;
}

void cv_ctx_destroy(cv_ctx *ctx) {
    if (!ctx) return;
    context *c = (context *)ctx;
    for (int w = 0; w < ctx->workers; w++) {
        free(c->blocks[w].own.memory);
        free(c->blocks[w].shared.memory);
    }
    free(c->blocks);
    free(c);
}

int cv_ctx_error(const cv_ctx *ctx, int64_t details[3]) {
    context *c = (context *)ctx;
    int code = atomic_load_explicit(&c->error, memory_order_acquire);
    if (code != CV_OK) memcpy(details, c->details, sizeof c->details);
    return code;
}

void cv_ctx_reset(cv_ctx *ctx) {
    context *c = (context *)ctx;
    atomic_store(&c->error, CV_OK);
    atomic_store(&c->error_claimed, 0);
}

void cv_ctx_fail(cv_ctx *ctx, int code, int64_t a, int64_t b) { ctx->fail(ctx, code, a, b); }

size_t cv_ctx_scratch_bytes(const cv_ctx *ctx) {
    const context *c = (const context *)ctx;
    size_t total = 0;
    for (int w = 0; w < ctx->workers; w++) total += c->blocks[w].own.bytes + c->blocks[w].shared.bytes;
    return total;
}

/* ---------------------------------------------------------------- processors */

#if defined(__linux__)
/* Processors that a cgroup quota pays for, or 0 where there is no quota. */
static int quota_cpus(void) {
    double quota = 0, period = 0;
    char text[64] = "";
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r"); /* version 2: "quota period" or "max period" */
    if (f) {
        if (fscanf(f, "%63s %lf", text, &period) == 2 && strcmp(text, "max")) quota = atof(text);
        fclose(f);
    } else {
        if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r"))) {
            if (fscanf(f, "%lf", &quota) != 1) quota = 0;
            fclose(f);
        }
        if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r"))) {
            if (fscanf(f, "%lf", &period) != 1) period = 0;
            fclose(f);
        }
    }
    if (quota <= 0 || period <= 0) return 0;
    int cpus = (int)((quota + period - 1) / period);
    return cpus < 1 ? 1 : cpus;
}

static int affinity_cpus(void) {
    /* The kernel refuses a mask that is shorter than its own: grow until it fits. */
    for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
        cpu_set_t *set = CPU_ALLOC(capacity);
        if (!set) return 0;
        size_t bytes = CPU_ALLOC_SIZE(capacity);
        int ok = sched_getaffinity(0, bytes, set) == 0;
        int count = ok ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (ok) return count;
    }
    return 0;
}
#endif

int cv_available_cpus(void) {
    int cpus = 0;
#if defined(__linux__)
    cpus = affinity_cpus();
    int quota = quota_cpus();
    if (quota && quota < cpus) cpus = quota;
#endif
    if (cpus < 1) cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return cpus < 1 ? 1 : cpus;
}

#if defined(__x86_64__)
#define BIT(word, n) (((word) >> (n)) & 1u)

/* Tile registers are switched on per process; threads that start later inherit the permission. */
static int amx_permitted(void) {
#if defined(__linux__)
    enum { ARCH_GET_XCOMP_PERM = 0x1022, ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned long permitted = 0;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA)) return 0;
    if (syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &permitted)) return 0;
    return (permitted >> XTILEDATA) & 1;
#else
    return 0;
#endif
}

static uint64_t detect_features(void) {
    unsigned a, b, c, d, b7 = 0, c7 = 0, d7 = 0, a71 = 0;
    uint64_t features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !BIT(c, 27)) return 0; /* OSXSAVE */
    unsigned c1 = c, subleaves = 0;
    if (__get_cpuid_count(7, 0, &subleaves, &b7, &c7, &d7) && subleaves >= 1) {
        __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    }
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    int ymm = (lo & 0x6) == 0x6, zmm = (lo & 0xe6) == 0xe6, tiles = (lo & 0x60000) == 0x60000;
    if (ymm && BIT(b7, 5) && BIT(c1, 12) && BIT(c1, 29)) features |= CV_CPU_AVX2;
    if (ymm && BIT(a71, 4)) features |= CV_CPU_AVX_VNNI;
    if (zmm && BIT(b7, 16) && BIT(b7, 17) && BIT(b7, 28) && BIT(b7, 30) && BIT(b7, 31)) {
        features |= CV_CPU_AVX512;
        if (BIT(c7, 11)) features |= CV_CPU_AVX512_VNNI;
        if (BIT(a71, 5)) features |= CV_CPU_AVX512_BF16;
        if (BIT(d7, 23)) features |= CV_CPU_AVX512_FP16;
    }
    if (tiles && BIT(d7, 24) && amx_permitted()) {
        if (BIT(d7, 25)) features |= CV_CPU_AMX_INT8;
        if (BIT(d7, 22)) features |= CV_CPU_AMX_BF16;
    }
    return features;
}
#elif defined(__aarch64__) && defined(__linux__)
static uint64_t detect_features(void) {
    /* Bits of AT_HWCAP and AT_HWCAP2, from the kernel's documentation of ELF hwcaps. */
    unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(26);
    uint64_t features = 0;
    if (cap & (1ul << 1)) features |= CV_CPU_NEON;
    if (cap & (1ul << 10)) features |= CV_CPU_FP16;
    if (cap & (1ul << 20)) features |= CV_CPU_DOTPROD;
    if (cap & (1ul << 22)) features |= CV_CPU_SVE;
    if (cap2 & (1ul << 13)) features |= CV_CPU_I8MM;
    if (cap2 & (1ul << 14)) features |= CV_CPU_BF16;
    return features;
}
#elif defined(__aarch64__)
static uint64_t detect_features(void) { return CV_CPU_NEON; }
#else
static uint64_t detect_features(void) { return 0; }
#endif

static pthread_once_t features_once = PTHREAD_ONCE_INIT;
static uint64_t features;
static void set_features(void) { features = detect_features(); }

uint64_t cv_cpu_features(void) {
    pthread_once(&features_once, set_features);
    return features;
}
