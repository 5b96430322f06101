/* What the machine gives at most: multiply-adds in float32 and on AMX tiles in bfloat16, and reads of a buffer. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HAVE_AMX 1
#endif

#if defined(__AVX512F__)
#define BYTES 64
#define CHAINS 16 /* of 32 registers; two units with a latency of 4 need 8 */
#elif defined(__AVX__)
#define BYTES 32
#define CHAINS 12
#else
#define BYTES 16
#define CHAINS 16
#endif
typedef float vec __attribute__((vector_size(BYTES)));
enum { LANES = BYTES / 4, MAX_THREADS = 256, MAX_WINDOWS = 8192 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A thread's part. The rate is the median over windows of about half a millisecond: on a busy machine the median of a
 * workload's calls is not that of the calls that were interrupted either. */
typedef struct {
    double seconds, rate;
    const char *memory;
    int64_t bytes;
    float sink;
    int windows;
    double rates[MAX_WINDOWS];
} job;

static const double WINDOW = 5e-4;

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add_window(job *j, double work, double seconds) {
    if (j->windows < MAX_WINDOWS) j->rates[j->windows++] = work / seconds;
}

static void finish(job *j) {
    qsort(j->rates, (size_t)j->windows, sizeof j->rates[0], compare);
    j->rate = j->windows ? j->rates[j->windows / 2] : 0;
}

static void *fma_loop(void *arg) {
    job *j = arg;
    const vec zero = {0};
    const vec a = zero + 0.999f, b = zero + 0.001f;
    vec acc[CHAINS];
#pragma GCC unroll 16
    for (int k = 0; k < CHAINS; k++) acc[k] = b * (float)k;
    const int64_t inner = 80000;
    const double start = now();
    double last = start, end;
    do {
        for (int64_t i = 0; i < inner; i++) {
#pragma GCC unroll 16
            for (int k = 0; k < CHAINS; k++) acc[k] = acc[k] * a + b;
        }
        end = now();
        add_window(j, 2.0 * LANES * CHAINS * (double)inner, end - last);
        last = end;
    } while (end - start < j->seconds);
    for (int k = 0; k < CHAINS; k++) j->sink += acc[k][0];
    finish(j);
    return NULL;
}

static void *read_loop(void *arg) {
    job *j = arg;
    enum { STREAMS = 8 };
    const vec *p = (const vec *)j->memory;
    const int64_t n = j->bytes / (int64_t)sizeof(vec) / STREAMS * STREAMS;
    vec acc[STREAMS];
    memset(acc, 0, sizeof acc);
    int64_t done = 0;
    const double start = now();
    double last = start, end;
    do {
        for (int64_t i = 0; i < n; i += STREAMS) {
#pragma GCC unroll 8
            for (int k = 0; k < STREAMS; k++) acc[k] += p[i + k];
        }
        done += n;
        end = now();
        if (end - last >= WINDOW) {
            add_window(j, (double)sizeof(vec) * (double)done, end - last);
            last = end;
            done = 0;
        }
    } while (end - start < j->seconds || j->windows == 0);
    for (int k = 0; k < STREAMS; k++) j->sink += acc[k][0];
    finish(j);
    return NULL;
}

#ifdef HAVE_AMX
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} tile_config;

__attribute__((target("amx-tile,amx-bf16"))) static void *amx_loop(void *arg) {
    job *j = arg;
    tile_config config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) config.colsb[t] = 64, config.rows[t] = 16;
    static const char zeros[1024] __attribute__((aligned(64)));
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    const int64_t inner = 20000;
    const double start = now();
    double last = start, end;
    do {
        for (int64_t i = 0; i < inner; i++) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        end = now();
        add_window(j, 4.0 * 2 * 16 * 16 * 32 * (double)inner, end - last);
        last = end;
    } while (end - start < j->seconds);
    _tile_release();
    finish(j);
    return NULL;
}

/* Linux grants the tile registers to a process that asks (arch_prctl ARCH_REQ_XCOMP_PERM for XTILEDATA). */
static int amx_granted(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (!(d & (1u << 22)) || !(d & (1u << 24))) return 0; /* AMX-BF16, AMX-TILE */
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
#endif

static double run(void *(*body)(void *), int threads, double seconds, const char *memory, int64_t bytes) {
    static job jobs[MAX_THREADS];
    static pthread_t ids[MAX_THREADS];
    if (threads < 1 || threads > MAX_THREADS) return 0;
    const int64_t share = bytes / threads / 512 * 512;
    int started = 0;
    double total = 0;
    for (int t = 0; t < threads; t++) {
        const char *mine = memory ? memory + t * share : NULL;
        jobs[t].seconds = seconds;
        jobs[t].memory = mine;
        jobs[t].bytes = share;
        jobs[t].windows = 0;
        if (t > 0) {
            if (pthread_create(&ids[t], NULL, body, &jobs[t]) != 0) break;
            started = t;
        }
    }
    body(&jobs[0]);
    for (int t = 1; t <= started; t++) pthread_join(ids[t], NULL);
    for (int t = 0; t <= started; t++) total += jobs[t].rate;
    return total;
}

/* Operations a second; float32. */
double bench_fma(int threads, double seconds) { return run(fma_loop, threads, seconds, NULL, 0); }

/* Bytes a second; each thread reads its own part of the 64-byte aligned memory again and again. */
double bench_read(int threads, double seconds, const void *memory, int64_t bytes) {
    return run(read_loop, threads, seconds, memory, bytes);
}

/* Operations a second; bfloat16 on AMX tiles, 0 where there are none. */
double bench_amx(int threads, double seconds) {
#ifdef HAVE_AMX
    if (amx_granted()) return run(amx_loop, threads, seconds, NULL, 0);
#endif
    return 0;
}
