/* What a kernel may ask of the runtime library: parallel loops, scratch memory, the error flag, micro-kernels.
 *
 * A kernel links against nothing: it reaches the library (runtime.c) through the function pointers of its cv_ctx.
 *
 *   cv_parallel(ctx, n, grain, body, arg)
 *       Calls body(arg, begin, end, worker) for disjoint ranges that cover [0, n), and returns when all are done.
 *       The cut depends on n, grain and the pool's size alone: min(workers, ceil(n / grain)) ranges of almost equal
 *       length, so n <= grain is one range. Ranges run at once on a free pool
 *       (the caller runs what a worker has not begun). Inside another parallel loop, or when
 *       another thread holds the pool, the same ranges run one after the other on the calling thread: a body may be
 *       called several times with the same `worker`, so partial results belong to a range, not to a worker.
 *   cv_workers(ctx)
 *       Upper bound (exclusive) of `worker`.
 *   cv_scratch(ctx, worker, bytes)
 *       64-byte aligned memory of that worker; NULL after cv_fail(CV_ENOMEM). The next call for the worker may give
 *       the same memory or free it. Contents are kept from call to call only by accident.
 *   cv_scratch_shared(ctx, bytes)
 *       The same for the calling thread: for data that it prepares and the bodies of its next parallel loop read.
 *       Never the memory that cv_scratch gives.
 *   cv_fail(ctx, code, a, b)
 *       Records an error; the first one of a native call wins. a and b are details that the caller's message shows
 *       (CV_EPOWER: a negative exponent; CV_EINDEX: index and extent; CV_ENOMEM: bytes; CV_ECHECK: the assertion;
 *       CV_EHOST: the caller's own function failed and keeps the error).
 *   cv_failed(ctx)
 *       Whether an error was recorded; loops of the host program end with it.
 */
#ifndef CUVIL_RUNTIME_H
#define CUVIL_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

enum { CV_OK = 0, CV_EINDEX = 1, CV_ENOMEM = 2, CV_EDOMAIN = 3, CV_EPOWER = 4, CV_ECHECK = 5, CV_EHOST = 6 };

typedef struct cv_ctx cv_ctx;
typedef void (*cv_body)(void *arg, int64_t begin, int64_t end, int worker);

struct cv_ctx {
    void (*parallel)(cv_ctx *ctx, int64_t n, int64_t grain, cv_body body, void *arg);
    void *(*scratch)(cv_ctx *ctx, int worker, size_t bytes);
    void *(*scratch_shared)(cv_ctx *ctx, size_t bytes);
    void (*fail)(cv_ctx *ctx, int code, int64_t a, int64_t b);
    int (*failed)(const cv_ctx *ctx);
    const struct cv_microkernels *microkernels; /* microkernel.h */
    int workers;
    const struct cv_narrow_kernels *bf16; /* null where the processor has no unit for it */
    int site; /* what the host program is about to call, for the report of an error */
};

static inline void cv_parallel(cv_ctx *ctx, int64_t n, int64_t grain, cv_body body, void *arg) {
    ctx->parallel(ctx, n, grain, body, arg);
}
static inline int cv_workers(const cv_ctx *ctx) { return ctx->workers; }
static inline void *cv_scratch(cv_ctx *ctx, int worker, size_t bytes) { return ctx->scratch(ctx, worker, bytes); }
static inline void *cv_scratch_shared(cv_ctx *ctx, size_t bytes) { return ctx->scratch_shared(ctx, bytes); }
static inline void cv_fail(cv_ctx *ctx, int code, int64_t a, int64_t b) { ctx->fail(ctx, code, a, b); }
static inline int cv_failed(const cv_ctx *ctx) { return ctx->failed(ctx); }

/* ---------------------------------------------------------------- the library's own interface (for ctypes) */

typedef struct cv_pool cv_pool;

/* Bits of cv_cpu_features(). */
#define CV_CPU_AVX2 (UINT64_C(1) << 0)        /* with FMA and F16C */
#define CV_CPU_AVX512 (UINT64_C(1) << 1)      /* F, BW, CD, DQ and VL */
#define CV_CPU_AVX512_VNNI (UINT64_C(1) << 2)
#define CV_CPU_AVX512_BF16 (UINT64_C(1) << 3)
#define CV_CPU_AVX512_FP16 (UINT64_C(1) << 4)
#define CV_CPU_AVX_VNNI (UINT64_C(1) << 5)
#define CV_CPU_AMX_INT8 (UINT64_C(1) << 6)    /* and the kernel lets this process use tiles */
#define CV_CPU_AMX_BF16 (UINT64_C(1) << 7)
#define CV_CPU_NEON (UINT64_C(1) << 16)
#define CV_CPU_FP16 (UINT64_C(1) << 17)
#define CV_CPU_DOTPROD (UINT64_C(1) << 18)
#define CV_CPU_I8MM (UINT64_C(1) << 19)
#define CV_CPU_BF16 (UINT64_C(1) << 20)
#define CV_CPU_SVE (UINT64_C(1) << 21)

/* A pool of `workers` (>= 1) including the calling thread; threads start at the first loop that needs them.
 * NULL when workers < 1 or memory is short. Destroy it when no call runs on it and its contexts are gone. */
cv_pool *cv_pool_create(int workers);
void cv_pool_destroy(cv_pool *pool);
int cv_pool_workers(const cv_pool *pool);
int cv_pool_threads(const cv_pool *pool); /* threads started so far, the caller not counted */

/* A context serves one native call at a time and keeps its scratch memory for the next. NULL when memory is short. */
cv_ctx *cv_ctx_create(cv_pool *pool);
void cv_ctx_destroy(cv_ctx *ctx);
/* The error of the calls since the last reset: its code, with a, b and the site in details[0..2] when it is not CV_OK. */
int cv_ctx_error(const cv_ctx *ctx, int64_t details[3]);
void cv_ctx_reset(cv_ctx *ctx);
void cv_ctx_fail(cv_ctx *ctx, int code, int64_t a, int64_t b); /* cv_fail, for functions of the caller */
size_t cv_ctx_scratch_bytes(const cv_ctx *ctx);

uint64_t cv_cpu_features(void);
/* Contexts that are created from now on do without these features. Operands that a context packed are of use to
 * contexts with the same features only. */
void cv_hide_features(uint64_t mask);
int cv_available_cpus(void); /* affinity mask and cgroup quota considered; at least 1 */

#endif
