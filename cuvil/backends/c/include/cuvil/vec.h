/* Vectors of CV_LANES elements: types, arithmetic, comparison, casts, memory access and horizontal reductions.
 *
 * Every vector of a translation unit has CV_LANES elements, whatever its element type, so a kernel body is the same
 * text for every dtype. 8- to 32-bit elements are one compiler vector ("flat"). 64-bit elements are a pair of
 * half-length vectors ("pair"): compilers keep a vector that is wider than the machine's registers in memory and
 * scalarise its comparisons, while two register-sized halves stay in registers. Read one lane with cv_lane_<dt>.
 *
 * Names: cv_* is the contract (docs/design/c-backend.md); cvi_* and CVI_* are internal to the headers.
 * Requires -fwrapv (integers wrap) and a compiler with GCC vector extensions. immintrin.h would double the compile
 * time of a small kernel, so the few machine-specific instructions are reached through GCC's builtins; other
 * compilers take the portable text, which computes the same values.
 */
#ifndef CUVIL_VEC_H
#define CUVIL_VEC_H

#include <stdint.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define CV_LANES 16
#else
#define CV_LANES 8
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if CV_LANES == 16
#define CVI_GCC_AVX512 1
#elif defined(__AVX2__) && defined(__F16C__)
#define CVI_GCC_AVX2 1
#endif
#endif

#define CV_INLINE static inline __attribute__((always_inline))
/* For long bodies: no cost when unused, and the compiler decides whether to inline. */
#define CV_FUNC static __attribute__((unused))

/* ---------------------------------------------------------------- types */

#define CVI_VECTOR(name, T, n)                                           \
    typedef T name __attribute__((vector_size(sizeof(T) * (n))));        \
    typedef T name##_mem __attribute__((vector_size(sizeof(T) * (n)), aligned(sizeof(T)), may_alias));

CVI_VECTOR(cv_vf32, float, CV_LANES)
CVI_VECTOR(cv_vi8, int8_t, CV_LANES)
CVI_VECTOR(cv_vi16, int16_t, CV_LANES)
CVI_VECTOR(cv_vi32, int32_t, CV_LANES)
CVI_VECTOR(cv_vu8, uint8_t, CV_LANES)
CVI_VECTOR(cv_vu16, uint16_t, CV_LANES)
CVI_VECTOR(cv_vu32, uint32_t, CV_LANES)
/* Half-length vectors: the parts of the pairs, and 32-bit vectors on their way to or from them. */
CVI_VECTOR(cv_hf64, double, CV_LANES / 2)
CVI_VECTOR(cv_hi64, int64_t, CV_LANES / 2)
CVI_VECTOR(cv_hu64, uint64_t, CV_LANES / 2)
CVI_VECTOR(cv_hf32, float, CV_LANES / 2)
CVI_VECTOR(cv_hi32, int32_t, CV_LANES / 2)
CVI_VECTOR(cv_hu32, uint32_t, CV_LANES / 2)

typedef struct { cv_hf64 lo, hi; } cv_vf64;
typedef struct { cv_hi64 lo, hi; } cv_vi64;
typedef struct { cv_hu64 lo, hi; } cv_vu64;
typedef cv_vi32 cv_vbool; /* lanes are 0 or -1 */

/* The part type of each dtype, and the integer vector of its width, which a comparison gives. */
typedef cv_vf32 cvi_pf32; typedef cv_vi32 cvi_mf32;
typedef cv_vi8 cvi_pi8;   typedef cv_vi8 cvi_mi8;
typedef cv_vi16 cvi_pi16; typedef cv_vi16 cvi_mi16;
typedef cv_vi32 cvi_pi32; typedef cv_vi32 cvi_mi32;
typedef cv_vu8 cvi_pu8;   typedef cv_vi8 cvi_mu8;
typedef cv_vu16 cvi_pu16; typedef cv_vi16 cvi_mu16;
typedef cv_vu32 cvi_pu32; typedef cv_vi32 cvi_mu32;
typedef cv_hf64 cvi_pf64; typedef cv_hi64 cvi_mf64;
typedef cv_hi64 cvi_pi64; typedef cv_hi64 cvi_mi64;
typedef cv_hu64 cvi_pu64; typedef cv_hi64 cvi_mu64;

/* X(dtype, C element type, FLAT or PAIR) */
#define CVI_SIGNED(X) X(i8, int8_t, FLAT) X(i16, int16_t, FLAT) X(i32, int32_t, FLAT) X(i64, int64_t, PAIR)
#define CVI_UNSIGNED(X) X(u8, uint8_t, FLAT) X(u16, uint16_t, FLAT) X(u32, uint32_t, FLAT) X(u64, uint64_t, PAIR)
#define CVI_INTEGERS(X) CVI_SIGNED(X) CVI_UNSIGNED(X)
#define CVI_FLOATS(X) X(f32, float, FLAT) X(f64, double, PAIR)
#define CVI_NUMERIC(X) CVI_FLOATS(X) CVI_INTEGERS(X)

/* Apply F, a function or macro over parts, to whole vectors. */
#define CVI_MAP1_FLAT(V, F, a) F(a)
#define CVI_MAP2_FLAT(V, F, a, b) F(a, b)
#define CVI_MAP3_FLAT(V, F, a, b, c) F(a, b, c)
#define CVI_MAP1_PAIR(V, F, a) ((V){F((a).lo), F((a).hi)})
#define CVI_MAP2_PAIR(V, F, a, b) ((V){F((a).lo, (b).lo), F((a).hi, (b).hi)})
#define CVI_MAP3_PAIR(V, F, a, b, c) ((V){F((a).lo, (b).lo, (c).lo), F((a).hi, (b).hi, (c).hi)})

/* ---------------------------------------------------------------- halves of flat 32-bit vectors */

#if CV_LANES == 16
#define CVI_FIRST 0, 1, 2, 3, 4, 5, 6, 7
#define CVI_SECOND 8, 9, 10, 11, 12, 13, 14, 15
#else
#define CVI_FIRST 0, 1, 2, 3
#define CVI_SECOND 4, 5, 6, 7
#endif

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define CVI_HAS_SHUFFLEVECTOR 1
#endif
#endif

#ifdef CVI_HAS_SHUFFLEVECTOR
#define CVI_HALVES(dt)                                                                                               \
    CV_INLINE cv_h##dt cvi_lo_##dt(cv_v##dt v) { return __builtin_shufflevector(v, v, CVI_FIRST); }                  \
    CV_INLINE cv_h##dt cvi_hi_##dt(cv_v##dt v) { return __builtin_shufflevector(v, v, CVI_SECOND); }                 \
    CV_INLINE cv_v##dt cvi_cat_##dt(cv_h##dt lo, cv_h##dt hi) {                                                      \
        return __builtin_shufflevector(lo, hi, CVI_FIRST, CVI_SECOND);                                               \
    }
#else
#define CVI_HALVES(dt)                                                                                               \
    typedef union { cv_v##dt all; struct { cv_h##dt lo, hi; } half; } cvi_split_##dt;                                \
    CV_INLINE cv_h##dt cvi_lo_##dt(cv_v##dt v) { return ((cvi_split_##dt){.all = v}).half.lo; }                      \
    CV_INLINE cv_h##dt cvi_hi_##dt(cv_v##dt v) { return ((cvi_split_##dt){.all = v}).half.hi; }                      \
    CV_INLINE cv_v##dt cvi_cat_##dt(cv_h##dt lo, cv_h##dt hi) { return ((cvi_split_##dt){.half = {lo, hi}}).all; }
#endif
CVI_HALVES(f32)
CVI_HALVES(i32)
CVI_HALVES(u32)

/* ---------------------------------------------------------------- conversions of one vector
 *
 * cvi_<from>_<to>, with v and h as in the type names. gcc lowers __builtin_convertvector between widths to long
 * shuffles, or lane by lane, though the machine has an instruction; hence the builtins. The rest is portable.
 */

#define CVI_CONVERT(v, V) __builtin_convertvector(v, V)
#define CVI_CONVERSION(from, to, EXPR) \
    CV_INLINE cv_##to cvi_##from##_##to(cv_##from v) { return (cv_##to)EXPR; }
#define CVI_PORTABLE(from, to) CVI_CONVERSION(from, to, CVI_CONVERT(v, cv_##to))

#if CVI_GCC_AVX512 || CVI_GCC_AVX2
/* The element types that GCC's builtins insist on. */
typedef char cvi_v16qi __attribute__((vector_size(16)));
typedef short cvi_v8hi __attribute__((vector_size(16)));
typedef short cvi_v16hi __attribute__((vector_size(32)));
typedef long long cvi_v2di __attribute__((vector_size(16)));
typedef long long cvi_v4di __attribute__((vector_size(32)));
typedef long long cvi_v8di __attribute__((vector_size(64)));
#endif

#if CVI_GCC_AVX512
CVI_CONVERSION(vi8, vi32, __builtin_ia32_pmovsxbd512_mask((cvi_v16qi)v, (cv_vi32){}, -1))
CVI_CONVERSION(vu8, vu32, __builtin_ia32_pmovzxbd512_mask((cvi_v16qi)v, (cv_vi32){}, -1))
CVI_CONVERSION(vi16, vi32, __builtin_ia32_pmovsxwd512_mask((cvi_v16hi)v, (cv_vi32){}, -1))
CVI_CONVERSION(vu16, vu32, __builtin_ia32_pmovzxwd512_mask((cvi_v16hi)v, (cv_vi32){}, -1))
CVI_CONVERSION(vi32, vi8, __builtin_ia32_pmovdb512_mask(v, (cvi_v16qi){}, -1))
CVI_CONVERSION(vi32, vi16, __builtin_ia32_pmovdw512_mask(v, (cvi_v16hi){}, -1))
CVI_CONVERSION(hi32, hi64, __builtin_ia32_pmovsxdq512_mask(v, (cvi_v8di){}, -1))
CVI_CONVERSION(hu32, hu64, __builtin_ia32_pmovzxdq512_mask((cv_hi32)v, (cvi_v8di){}, -1))
CVI_CONVERSION(hi64, hi32, __builtin_ia32_pmovqd512_mask((cvi_v8di)v, (cv_hi32){}, -1))
CVI_CONVERSION(hf32, hf64, __builtin_ia32_cvtps2pd512_mask(v, (cv_hf64){}, -1, 4))
CVI_CONVERSION(hf64, hf32, __builtin_ia32_cvtpd2ps512_mask(v, (cv_hf32){}, -1, 4))
CVI_CONVERSION(hi32, hf64, __builtin_ia32_cvtdq2pd512_mask(v, (cv_hf64){}, -1))
CVI_CONVERSION(hu32, hf64, __builtin_ia32_cvtudq2pd512_mask((cv_hi32)v, (cv_hf64){}, -1))
CVI_CONVERSION(hi64, hf32, __builtin_ia32_cvtqq2ps512_mask((cvi_v8di)v, (cv_hf32){}, -1, 4))
CVI_CONVERSION(hu64, hf32, __builtin_ia32_cvtuqq2ps512_mask((cvi_v8di)v, (cv_hf32){}, -1, 4))
#elif CVI_GCC_AVX2
/* The 8-byte vectors widen through the low half of a 16-byte register, and narrow by picking bytes within each
 * 128-bit half. */
CVI_CONVERSION(vi8, vi32, __builtin_ia32_pmovsxbd256((cvi_v16qi)(cvi_v2di){(long long)v, 0}))
CVI_CONVERSION(vu8, vu32, __builtin_ia32_pmovzxbd256((cvi_v16qi)(cvi_v2di){(long long)v, 0}))
CVI_CONVERSION(vi16, vi32, __builtin_ia32_pmovsxwd256((cvi_v8hi)v))
CVI_CONVERSION(vu16, vu32, __builtin_ia32_pmovzxwd256((cvi_v8hi)v))
CV_INLINE cv_vi16 cvi_vi32_vi16(cv_vi32 v) {
    cv_vi32 low = v & 0xffff; /* so that the unsigned saturation of the pack never acts */
    return (cv_vi16)__builtin_ia32_packusdw128(cvi_lo_i32(low), cvi_hi_i32(low));
}
CV_INLINE cv_vi8 cvi_vi32_vi8(cv_vi32 v) {
    cv_vi32 low = v & 0xff;
    cvi_v8hi words = __builtin_ia32_packusdw128(cvi_lo_i32(low), cvi_hi_i32(low));
    return (cv_vi8)((cvi_v2di)__builtin_ia32_packuswb128(words, words))[0];
}
CVI_CONVERSION(hi32, hi64, __builtin_ia32_pmovsxdq256(v))
CVI_CONVERSION(hu32, hu64, __builtin_ia32_pmovzxdq256((cv_hi32)v))
CVI_CONVERSION(hi64, hi32, cvi_lo_i32(__builtin_ia32_permvarsi256((cv_vi32)v, (cv_vi32){0, 2, 4, 6, 1, 3, 5, 7})))
CVI_CONVERSION(hf32, hf64, __builtin_ia32_cvtps2pd256(v))
CVI_CONVERSION(hf64, hf32, __builtin_ia32_cvtpd2ps256(v))
CVI_CONVERSION(hi32, hf64, __builtin_ia32_cvtdq2pd256(v))
/* 2^52 + v has v in its low bits. */
CVI_CONVERSION(hu32, hf64, ((cv_hf64)(cvi_hu32_hu64(v) | 0x4330000000000000) - 0x1p52))
CVI_PORTABLE(hi64, hf32)
CVI_PORTABLE(hu64, hf32)
#else
CVI_PORTABLE(vi8, vi32) CVI_PORTABLE(vu8, vu32) CVI_PORTABLE(vi16, vi32) CVI_PORTABLE(vu16, vu32)
CVI_PORTABLE(vi32, vi8) CVI_PORTABLE(vi32, vi16)
CVI_PORTABLE(hi32, hi64) CVI_PORTABLE(hu32, hu64) CVI_PORTABLE(hi64, hi32)
CVI_PORTABLE(hf32, hf64) CVI_PORTABLE(hf64, hf32)
CVI_PORTABLE(hi32, hf64) CVI_PORTABLE(hu32, hf64) CVI_PORTABLE(hi64, hf32) CVI_PORTABLE(hu64, hf32)
#endif
CVI_PORTABLE(hi64, hf64)
CVI_PORTABLE(hu64, hf64)
CVI_PORTABLE(vi8, vi16)
CVI_PORTABLE(vi16, vi8)
CVI_PORTABLE(vu8, vu16)
CVI_PORTABLE(vi32, vf32)
CVI_PORTABLE(vu32, vf32)

CV_INLINE cv_vi64 cvi_widen_i32(cv_vi32 v) {
    return (cv_vi64){cvi_hi32_hi64(cvi_lo_i32(v)), cvi_hi32_hi64(cvi_hi_i32(v))};
}
CV_INLINE cv_vi32 cvi_narrow_i64(cv_vi64 v) {
    return cvi_cat_i32(cvi_hi64_hi32(v.lo), cvi_hi64_hi32(v.hi));
}
CV_INLINE cv_vf64 cvi_widen_f32(cv_vf32 v) {
    return (cv_vf64){cvi_hf32_hf64(cvi_lo_f32(v)), cvi_hf32_hf64(cvi_hi_f32(v))};
}
CV_INLINE cv_vf32 cvi_narrow_f64(cv_vf64 v) {
    return cvi_cat_f32(cvi_hf64_hf32(v.lo), cvi_hf64_hf32(v.hi));
}

/* ---------------------------------------------------------------- masks */

/* cv_vbool to a mask of the dtype's width, and back. */
#define CVI_MASK_FLAT32(dt)                                          \
    CV_INLINE cv_vi32 cvi_mask_##dt(cv_vbool c) { return c; }        \
    CV_INLINE cv_vbool cvi_bool_##dt(cv_vi32 m) { return m; }
#define CVI_MASK_NARROW(dt, mt)                                                              \
    CV_INLINE cv_v##mt cvi_mask_##dt(cv_vbool c) { return cvi_vi32_v##mt(c); }        \
    CV_INLINE cv_vbool cvi_bool_##dt(cv_v##mt m) { return cvi_v##mt##_vi32(m); }
#define CVI_MASK_PAIR(dt)                                                    \
    CV_INLINE cv_vi64 cvi_mask_##dt(cv_vbool c) { return cvi_widen_i32(c); } \
    CV_INLINE cv_vbool cvi_bool_##dt(cv_vi64 m) { return cvi_narrow_i64(m); }
CVI_MASK_FLAT32(f32) CVI_MASK_FLAT32(i32) CVI_MASK_FLAT32(u32)
CVI_MASK_NARROW(i8, i8) CVI_MASK_NARROW(u8, i8) CVI_MASK_NARROW(i16, i16) CVI_MASK_NARROW(u16, i16)
CVI_MASK_PAIR(f64) CVI_MASK_PAIR(i64) CVI_MASK_PAIR(u64)

/* Bitwise m ? a : b over parts; m's lanes are 0 or -1. */
#define CVI_BLEND(dt, T, cls)                                                                            \
    CV_INLINE cvi_p##dt cvi_blend_##dt(cvi_m##dt m, cvi_p##dt a, cvi_p##dt b) {                          \
        return (cvi_p##dt)(((cvi_m##dt)a & m) | ((cvi_m##dt)b & ~m));                                    \
    }                                                                                                    \
    CV_INLINE cv_v##dt cv_select_##dt(cv_vbool c, cv_v##dt a, cv_v##dt b) {                              \
        return CVI_MAP3_##cls(cv_v##dt, cvi_blend_##dt, cvi_mask_##dt(c), a, b);                         \
    }
CVI_NUMERIC(CVI_BLEND)
CV_INLINE cv_vbool cv_select_bool(cv_vbool c, cv_vbool a, cv_vbool b) { return (a & c) | (b & ~c); }

/* ---------------------------------------------------------------- splat, lane, iota */

#define CVI_SPLAT_FLAT(dt, T) \
    CV_INLINE cv_v##dt cv_splat_##dt(T x) { return (cv_v##dt){} + x; }
#define CVI_SPLAT_PAIR(dt, T) \
    CV_INLINE cv_v##dt cv_splat_##dt(T x) { return (cv_v##dt){(cv_h##dt){} + x, (cv_h##dt){} + x}; }
#define CVI_LANE_FLAT(dt, T) \
    CV_INLINE T cv_lane_##dt(cv_v##dt v, int l) { return v[l]; }
#define CVI_LANE_PAIR(dt, T)                                                                              \
    CV_INLINE T cv_lane_##dt(cv_v##dt v, int l) {                                                         \
        return l < CV_LANES / 2 ? v.lo[l & (CV_LANES / 2 - 1)] : v.hi[l & (CV_LANES / 2 - 1)];            \
    }
#define CVI_SPLAT_AND_LANE(dt, T, cls) CVI_SPLAT_##cls(dt, T) CVI_LANE_##cls(dt, T)
CVI_INTEGERS(CVI_SPLAT_AND_LANE)
CVI_LANE_FLAT(f32, float)
CVI_LANE_PAIR(f64, double)
/* 0 + x would turn -0.0 into 0.0; x - 0.0 keeps every value. */
CV_INLINE cv_vf32 cv_splat_f32(float x) { return x - (cv_vf32){}; }
CV_INLINE cv_vf64 cv_splat_f64(double x) { return (cv_vf64){x - (cv_hf64){}, x - (cv_hf64){}}; }
CV_INLINE cv_vbool cv_splat_bool(int x) { return cv_splat_i32(-(x != 0)); }
CV_INLINE int cv_lane_bool(cv_vbool v, int l) { return v[l] != 0; }

#if CV_LANES == 16
#define CVI_IOTA {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#define CVI_IOTA_HALF {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define CVI_IOTA {0, 1, 2, 3, 4, 5, 6, 7}
#define CVI_IOTA_HALF {0, 1, 2, 3}
#endif
CV_INLINE cv_vi64 cv_iota_i64(int64_t start) {
    return (cv_vi64){(cv_hi64)CVI_IOTA_HALF + start, (cv_hi64)CVI_IOTA_HALF + (start + CV_LANES / 2)};
}
CV_INLINE cv_vbool cv_tail_mask(int64_t n) { return (cv_vi32)CVI_IOTA < (int32_t)n; }

/* ---------------------------------------------------------------- machine instructions, with portable twins
 *
 * cvi_rint|floor|ceil|trunc_<dt>, cvi_sqrt_<dt>      over parts (f32, f64)
 * cvi_gtsel_<dt>(a, b), cvi_ltsel_<dt>(a, b)         a > b ? a : b and a < b ? a : b, so b where either is NaN
 * cvi_toi32_<dt>, cvi_toi64_f64                      truncating conversions; INT_MIN for NaN and out of range
 */

#if CVI_GCC_AVX512
#define CVI_ROUND_f32(a, mode) __builtin_ia32_rndscaleps_mask(a, mode, a, -1, 4)
#define CVI_ROUND_f64(a, mode) __builtin_ia32_rndscalepd_mask(a, mode, a, -1, 4)
#elif CVI_GCC_AVX2
#define CVI_ROUND_f32(a, mode) __builtin_ia32_roundps256(a, mode)
#define CVI_ROUND_f64(a, mode) __builtin_ia32_roundpd256(a, mode)
#endif

#ifdef CVI_ROUND_f32
/* Modes of the SSE4.1 rounding instructions; 8 keeps the inexact flag down. */
#define CVI_ROUNDING(dt)                                                                        \
    CV_INLINE cvi_p##dt cvi_rint_##dt(cvi_p##dt a) { return CVI_ROUND_##dt(a, 8); }             \
    CV_INLINE cvi_p##dt cvi_floor_##dt(cvi_p##dt a) { return CVI_ROUND_##dt(a, 9); }            \
    CV_INLINE cvi_p##dt cvi_ceil_##dt(cvi_p##dt a) { return CVI_ROUND_##dt(a, 10); }            \
    CV_INLINE cvi_p##dt cvi_trunc_##dt(cvi_p##dt a) { return CVI_ROUND_##dt(a, 11); }
CVI_ROUNDING(f32)
CVI_ROUNDING(f64)
#else
/* Adding and subtracting 2^23 (2^52) rounds a smaller magnitude half to even; the sign bit is put back. */
#define CVI_ROUNDING(dt, SIGN, BIG)                                                                                    \
    CV_INLINE cvi_p##dt cvi_with_sign_##dt(cvi_p##dt magnitude, cvi_p##dt sign) {                                      \
        return (cvi_p##dt)(((cvi_m##dt)magnitude & ~SIGN) | ((cvi_m##dt)sign & SIGN));                                 \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_rint_##dt(cvi_p##dt a) {                                                                   \
        cvi_p##dt m = (cvi_p##dt)((cvi_m##dt)a & ~SIGN);                                                               \
        return cvi_blend_##dt(m < BIG, cvi_with_sign_##dt((m + BIG) - BIG, a), a);                                     \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_floor_##dt(cvi_p##dt a) {                                                                  \
        cvi_p##dt r = cvi_rint_##dt(a);                                                                                \
        return cvi_with_sign_##dt(cvi_blend_##dt(r > a, r - 1, r), a);                                                 \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_ceil_##dt(cvi_p##dt a) { return -cvi_floor_##dt(-a); }                                     \
    CV_INLINE cvi_p##dt cvi_trunc_##dt(cvi_p##dt a) {                                                                  \
        return cvi_with_sign_##dt(cvi_floor_##dt((cvi_p##dt)((cvi_m##dt)a & ~SIGN)), a);                               \
    }
CVI_ROUNDING(f32, INT32_MIN, 0x1p23f)
CVI_ROUNDING(f64, INT64_MIN, 0x1p52)
#endif

#if CVI_GCC_AVX512
CV_INLINE cv_vf32 cvi_sqrt_f32(cv_vf32 a) { return __builtin_ia32_sqrtps512_mask(a, a, -1, 4); }
CV_INLINE cv_hf64 cvi_sqrt_f64(cv_hf64 a) { return __builtin_ia32_sqrtpd512_mask(a, a, -1, 4); }
CV_INLINE cv_vf32 cvi_gtsel_f32(cv_vf32 a, cv_vf32 b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4); }
CV_INLINE cv_vf32 cvi_ltsel_f32(cv_vf32 a, cv_vf32 b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }
CV_INLINE cv_hf64 cvi_gtsel_f64(cv_hf64 a, cv_hf64 b) { return __builtin_ia32_maxpd512_mask(a, b, a, -1, 4); }
CV_INLINE cv_hf64 cvi_ltsel_f64(cv_hf64 a, cv_hf64 b) { return __builtin_ia32_minpd512_mask(a, b, a, -1, 4); }
CV_INLINE cv_vi32 cvi_toi32_f32(cv_vf32 a) { return __builtin_ia32_cvttps2dq512_mask(a, (cv_vi32){}, -1, 4); }
CV_INLINE cv_hi32 cvi_toi32_f64(cv_hf64 a) { return __builtin_ia32_cvttpd2dq512_mask(a, (cv_hi32){}, -1, 4); }
CV_INLINE cv_hi64 cvi_toi64_f64(cv_hf64 a) {
    return (cv_hi64)__builtin_ia32_cvttpd2qq512_mask(a, (cvi_v8di){}, -1, 4);
}
#else
#if CVI_GCC_AVX2
CV_INLINE cv_vf32 cvi_sqrt_f32(cv_vf32 a) { return __builtin_ia32_sqrtps256(a); }
CV_INLINE cv_hf64 cvi_sqrt_f64(cv_hf64 a) { return __builtin_ia32_sqrtpd256(a); }
CV_INLINE cv_vf32 cvi_gtsel_f32(cv_vf32 a, cv_vf32 b) { return __builtin_ia32_maxps256(a, b); }
CV_INLINE cv_vf32 cvi_ltsel_f32(cv_vf32 a, cv_vf32 b) { return __builtin_ia32_minps256(a, b); }
CV_INLINE cv_hf64 cvi_gtsel_f64(cv_hf64 a, cv_hf64 b) { return __builtin_ia32_maxpd256(a, b); }
CV_INLINE cv_hf64 cvi_ltsel_f64(cv_hf64 a, cv_hf64 b) { return __builtin_ia32_minpd256(a, b); }
CV_INLINE cv_vi32 cvi_toi32_f32(cv_vf32 a) { return __builtin_ia32_cvttps2dq256(a); }
CV_INLINE cv_hi32 cvi_toi32_f64(cv_hf64 a) { return __builtin_ia32_cvttpd2dq256(a); }
#else
CV_INLINE cv_vf32 cvi_sqrt_f32(cv_vf32 a) {
    for (int l = 0; l < CV_LANES; l++) a[l] = __builtin_sqrtf(a[l]);
    return a;
}
CV_INLINE cv_hf64 cvi_sqrt_f64(cv_hf64 a) {
    for (int l = 0; l < CV_LANES / 2; l++) a[l] = __builtin_sqrt(a[l]);
    return a;
}
#define CVI_ORDER_SELECT(dt)                                                                                     \
    CV_INLINE cvi_p##dt cvi_gtsel_##dt(cvi_p##dt a, cvi_p##dt b) { return cvi_blend_##dt(a > b, a, b); }         \
    CV_INLINE cvi_p##dt cvi_ltsel_##dt(cvi_p##dt a, cvi_p##dt b) { return cvi_blend_##dt(a < b, a, b); }
CVI_ORDER_SELECT(f32)
CVI_ORDER_SELECT(f64)
/* C leaves an out-of-range conversion undefined: convert 0 there and put INT_MIN in its place. */
CV_INLINE cv_vi32 cvi_toi32_f32(cv_vf32 a) {
    cv_vi32 in = (a >= -0x1p31f) & (a < 0x1p31f);
    return cvi_blend_i32(in, CVI_CONVERT((cv_vf32)((cv_vi32)a & in), cv_vi32), (cv_vi32){} + INT32_MIN);
}
CV_INLINE cv_hi32 cvi_toi32_f64(cv_hf64 a) {
    cv_hi64 in = (a > -0x1p31 - 1) & (a < 0x1p31);
    cv_hi32 out = cvi_hi64_hi32(~in) & INT32_MIN;
    return CVI_CONVERT((cv_hf64)((cv_hi64)a & in), cv_hi32) | out;
}
#endif
CV_INLINE cv_hi64 cvi_toi64_f64(cv_hf64 a) {
    cv_hi64 in = (a >= -0x1p63) & (a < 0x1p63);
    return CVI_CONVERT((cv_hf64)((cv_hi64)a & in), cv_hi64) | (~in & INT64_MIN);
}
#endif

/* ---------------------------------------------------------------- arithmetic and comparison */

#define CVI_ADD(a, b) ((a) + (b))
#define CVI_SUB(a, b) ((a) - (b))
#define CVI_MUL(a, b) ((a) * (b))
#define CVI_DIV(a, b) ((a) / (b))
#define CVI_NEG(a) (-(a))
#define CVI_AND(a, b) ((a) & (b))
#define CVI_OR(a, b) ((a) | (b))
#define CVI_XOR(a, b) ((a) ^ (b))
#define CVI_NOT(a) (~(a))
#define CVI_EQ(a, b) ((a) == (b))
#define CVI_NE(a, b) ((a) != (b))
#define CVI_LT(a, b) ((a) < (b))
#define CVI_LE(a, b) ((a) <= (b))
#define CVI_GT(a, b) ((a) > (b))
#define CVI_GE(a, b) ((a) >= (b))

#define CVI_UNARY(name, F, dt, cls) \
    CV_INLINE cv_v##dt cv_##name##_##dt(cv_v##dt a) { return CVI_MAP1_##cls(cv_v##dt, F, a); }
#define CVI_BINARY(name, F, dt, cls) \
    CV_INLINE cv_v##dt cv_##name##_##dt(cv_v##dt a, cv_v##dt b) { return CVI_MAP2_##cls(cv_v##dt, F, a, b); }
#define CVI_COMPARE_FLAT(name, F, dt) \
    CV_INLINE cv_vbool cv_##name##_##dt(cv_v##dt a, cv_v##dt b) { return cvi_bool_##dt(F(a, b)); }
#define CVI_COMPARE_PAIR(name, F, dt)                                       \
    CV_INLINE cv_vbool cv_##name##_##dt(cv_v##dt a, cv_v##dt b) {           \
        return cvi_narrow_i64((cv_vi64){F(a.lo, b.lo), F(a.hi, b.hi)});     \
    }

#define CVI_ARITHMETIC(dt, T, cls)                                                                       \
    CVI_BINARY(add, CVI_ADD, dt, cls) CVI_BINARY(sub, CVI_SUB, dt, cls) CVI_BINARY(mul, CVI_MUL, dt, cls) \
    CVI_UNARY(neg, CVI_NEG, dt, cls)                                                                     \
    CVI_COMPARE_##cls(eq, CVI_EQ, dt) CVI_COMPARE_##cls(ne, CVI_NE, dt)                                  \
    CVI_COMPARE_##cls(lt, CVI_LT, dt) CVI_COMPARE_##cls(le, CVI_LE, dt)                                  \
    CVI_COMPARE_##cls(gt, CVI_GT, dt) CVI_COMPARE_##cls(ge, CVI_GE, dt)
CVI_NUMERIC(CVI_ARITHMETIC)

#define CVI_BITWISE(dt, T, cls)                                                                          \
    CVI_BINARY(and, CVI_AND, dt, cls) CVI_BINARY(or, CVI_OR, dt, cls) CVI_BINARY(xor, CVI_XOR, dt, cls)  \
    CVI_UNARY(not, CVI_NOT, dt, cls)
CVI_INTEGERS(CVI_BITWISE)

CV_INLINE cv_vbool cv_and_bool(cv_vbool a, cv_vbool b) { return a & b; }
CV_INLINE cv_vbool cv_or_bool(cv_vbool a, cv_vbool b) { return a | b; }
CV_INLINE cv_vbool cv_xor_bool(cv_vbool a, cv_vbool b) { return a ^ b; }
CV_INLINE cv_vbool cv_not_bool(cv_vbool a) { return ~a; }
CV_INLINE cv_vbool cv_eq_bool(cv_vbool a, cv_vbool b) { return ~(a ^ b); }
CV_INLINE cv_vbool cv_ne_bool(cv_vbool a, cv_vbool b) { return a ^ b; }
CV_INLINE cv_vbool cv_lt_bool(cv_vbool a, cv_vbool b) { return ~a & b; }
CV_INLINE cv_vbool cv_le_bool(cv_vbool a, cv_vbool b) { return ~a | b; }
CV_INLINE cv_vbool cv_gt_bool(cv_vbool a, cv_vbool b) { return a & ~b; }
CV_INLINE cv_vbool cv_ge_bool(cv_vbool a, cv_vbool b) { return a | ~b; }

/* Floats: sign-bit operations, rounding, predicates, and min/max that propagate NaN from either side. */
#define CVI_FLOAT_BASIC(dt, T, cls, SIGN, INF)                                                                         \
    CV_INLINE cvi_p##dt cvi_abs_##dt(cvi_p##dt a) { return (cvi_p##dt)((cvi_m##dt)a & ~SIGN); }                        \
    CV_INLINE cvi_p##dt cvi_copysign_##dt(cvi_p##dt a, cvi_p##dt b) {                                                  \
        return (cvi_p##dt)(((cvi_m##dt)a & ~SIGN) | ((cvi_m##dt)b & SIGN));                                            \
    }                                                                                                                  \
    CV_INLINE cvi_m##dt cvi_isnan_##dt(cvi_p##dt a) { return a != a; }                                                 \
    CV_INLINE cvi_m##dt cvi_isinf_##dt(cvi_p##dt a) { return ((cvi_m##dt)a & ~SIGN) == INF; }                          \
    CV_INLINE cvi_m##dt cvi_signbit_##dt(cvi_p##dt a) { return (cvi_m##dt)a < 0; }                                     \
    CV_INLINE cvi_p##dt cvi_nanmax_##dt(cvi_p##dt a, cvi_p##dt b) {                                                    \
        return cvi_blend_##dt(a == a, cvi_gtsel_##dt(a, b), a);                                                        \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_nanmin_##dt(cvi_p##dt a, cvi_p##dt b) {                                                    \
        return cvi_blend_##dt(a == a, cvi_ltsel_##dt(a, b), a);                                                        \
    }                                                                                                                  \
    CVI_BINARY(div, CVI_DIV, dt, cls)                                                                                  \
    CVI_BINARY(max, cvi_nanmax_##dt, dt, cls) CVI_BINARY(min, cvi_nanmin_##dt, dt, cls)                                \
    CVI_BINARY(copysign, cvi_copysign_##dt, dt, cls)                                                                   \
    CVI_UNARY(abs, cvi_abs_##dt, dt, cls) CVI_UNARY(sqrt, cvi_sqrt_##dt, dt, cls)                                      \
    CVI_UNARY(rint, cvi_rint_##dt, dt, cls) CVI_UNARY(floor, cvi_floor_##dt, dt, cls)                                  \
    CVI_UNARY(ceil, cvi_ceil_##dt, dt, cls) CVI_UNARY(trunc, cvi_trunc_##dt, dt, cls)                                  \
    CVI_PREDICATE_##cls(isnan, dt) CVI_PREDICATE_##cls(isinf, dt) CVI_PREDICATE_##cls(signbit, dt)
#define CVI_PREDICATE_FLAT(name, dt) \
    CV_INLINE cv_vbool cv_##name##_##dt(cv_v##dt a) { return cvi_##name##_##dt(a); }
#define CVI_PREDICATE_PAIR(name, dt)                                                                   \
    CV_INLINE cv_vbool cv_##name##_##dt(cv_v##dt a) {                                                  \
        return cvi_narrow_i64((cv_vi64){cvi_##name##_##dt(a.lo), cvi_##name##_##dt(a.hi)});            \
    }
CVI_FLOAT_BASIC(f32, float, FLAT, INT32_MIN, 0x7f800000)
CVI_FLOAT_BASIC(f64, double, PAIR, INT64_MIN, 0x7ff0000000000000)

/* Integers: min, max, abs. */
#define CVI_INT_ORDER(dt, T, cls)                                                                              \
    CV_INLINE cvi_p##dt cvi_gtsel_##dt(cvi_p##dt a, cvi_p##dt b) { return cvi_blend_##dt(a > b, a, b); }       \
    CV_INLINE cvi_p##dt cvi_ltsel_##dt(cvi_p##dt a, cvi_p##dt b) { return cvi_blend_##dt(a < b, a, b); }       \
    CVI_BINARY(max, cvi_gtsel_##dt, dt, cls) CVI_BINARY(min, cvi_ltsel_##dt, dt, cls)
CVI_INTEGERS(CVI_INT_ORDER)
#define CVI_ABS_SIGNED(a) (((a) ^ ((a) < 0)) - ((a) < 0))
#define CVI_ABS_UNSIGNED(a) (a)
#define CVI_SIGNED_ABS(dt, T, cls) CVI_UNARY(abs, CVI_ABS_SIGNED, dt, cls)
#define CVI_UNSIGNED_ABS(dt, T, cls) CVI_UNARY(abs, CVI_ABS_UNSIGNED, dt, cls)
CVI_SIGNED(CVI_SIGNED_ABS)
CVI_UNSIGNED(CVI_UNSIGNED_ABS)

/* Shifts: a count outside [0, width) shifts everything out. 8- and 16-bit lanes shift as 32-bit ones, because the
 * machines have no 8-bit variable shift. W: the working vector, U: its unsigned twin. */
#define CVI_SHIFT(dt, W, U, bits)                                                                                      \
    CV_INLINE W cvi_shl_##dt(W a, W b) { return (a << (b & (bits - 1))) & (W)((U)b < bits); }                          \
    CV_INLINE W cvi_shr_##dt(W a, W b) {                                                                               \
        W out = (W)((U)b >= bits);                                                                                     \
        return (((a >> (b & (bits - 1))) & ~out) | (((a >> (bits - 1)) >> 1) & out));                                  \
    }
CVI_SHIFT(i32, cv_vi32, cv_vu32, 32)
CVI_SHIFT(u32, cv_vu32, cv_vu32, 32)
CVI_SHIFT(i64, cv_hi64, cv_hu64, 64)
CVI_SHIFT(u64, cv_hu64, cv_hu64, 64)
CVI_BINARY(shl, cvi_shl_i32, i32, FLAT) CVI_BINARY(shr, cvi_shr_i32, i32, FLAT)
CVI_BINARY(shl, cvi_shl_u32, u32, FLAT) CVI_BINARY(shr, cvi_shr_u32, u32, FLAT)
CVI_BINARY(shl, cvi_shl_i64, i64, PAIR) CVI_BINARY(shr, cvi_shr_i64, i64, PAIR)
CVI_BINARY(shl, cvi_shl_u64, u64, PAIR) CVI_BINARY(shr, cvi_shr_u64, u64, PAIR)
/* ---------------------------------------------------------------- casts
 *
 * 32-bit integers and the two floats are hubs: narrow integers convert through i32 (u32 for the unsigned), 64-bit
 * ones by halves.
 */

#define CVI_CAST(from, to, EXPR) CV_INLINE cv_v##to cv_cast_##from##_##to(cv_v##from a) { return EXPR; }
#define CVI_SAME(dt, T, cls) CVI_CAST(dt, dt, a)
CVI_NUMERIC(CVI_SAME)

/* Among flat integers. */
CVI_CAST(i8, i16, cvi_vi8_vi16(a)) CVI_CAST(i16, i8, cvi_vi16_vi8(a)) CVI_CAST(u8, u16, cvi_vu8_vu16(a))
CVI_CAST(i8, i32, cvi_vi8_vi32(a)) CVI_CAST(i16, i32, cvi_vi16_vi32(a))
CVI_CAST(u8, u32, cvi_vu8_vu32(a)) CVI_CAST(u16, u32, cvi_vu16_vu32(a))
CVI_CAST(i32, i8, cvi_vi32_vi8(a)) CVI_CAST(i32, i16, cvi_vi32_vi16(a))
CVI_CAST(u8, i16, (cv_vi16)cvi_vu8_vu16(a)) CVI_CAST(u8, i32, (cv_vi32)cvi_vu8_vu32(a))
CVI_CAST(u16, i32, (cv_vi32)cvi_vu16_vu32(a)) CVI_CAST(u16, u8, (cv_vu8)cvi_vi16_vi8((cv_vi16)a))
CVI_CAST(u32, u8, (cv_vu8)cvi_vi32_vi8((cv_vi32)a)) CVI_CAST(u32, u16, (cv_vu16)cvi_vi32_vi16((cv_vi32)a))
CVI_CAST(i8, u8, (cv_vu8)a) CVI_CAST(i16, u16, (cv_vu16)a) CVI_CAST(i32, u32, (cv_vu32)a)
CVI_CAST(u8, i8, (cv_vi8)a) CVI_CAST(u16, i16, (cv_vi16)a) CVI_CAST(u32, i32, (cv_vi32)a)
CVI_CAST(i8, u16, (cv_vu16)cv_cast_i8_i16(a)) CVI_CAST(i8, u32, (cv_vu32)cv_cast_i8_i32(a))
CVI_CAST(i16, u8, (cv_vu8)cv_cast_i16_i8(a)) CVI_CAST(i16, u32, (cv_vu32)cv_cast_i16_i32(a))
CVI_CAST(i32, u8, (cv_vu8)cv_cast_i32_i8(a)) CVI_CAST(i32, u16, (cv_vu16)cv_cast_i32_i16(a))
CVI_CAST(u16, i8, (cv_vi8)cv_cast_u16_u8(a)) CVI_CAST(u32, i8, (cv_vi8)cv_cast_u32_u8(a))
CVI_CAST(u32, i16, (cv_vi16)cv_cast_u32_u16(a))

/* 32-bit and 64-bit integers. */
CVI_CAST(i32, i64, cvi_widen_i32(a))
CVI_CAST(i64, i32, cvi_narrow_i64(a))
CVI_CAST(i64, u64, ((cv_vu64){(cv_hu64)a.lo, (cv_hu64)a.hi}))
CVI_CAST(u64, i64, ((cv_vi64){(cv_hi64)a.lo, (cv_hi64)a.hi}))
CVI_CAST(u32, u64, ((cv_vu64){cvi_hu32_hu64(cvi_lo_u32(a)), cvi_hu32_hu64(cvi_hi_u32(a))}))
CVI_CAST(u32, i64, cv_cast_u64_i64(cv_cast_u32_u64(a)))
CVI_CAST(i32, u64, cv_cast_i64_u64(cv_cast_i32_i64(a)))
CVI_CAST(i64, u32, (cv_vu32)cv_cast_i64_i32(a))
CVI_CAST(u64, i32, cv_cast_i64_i32(cv_cast_u64_i64(a)))
CVI_CAST(u64, u32, (cv_vu32)cv_cast_u64_i32(a))

/* Floats and 32/64-bit integers. Unsigned results subtract half their range first, so that what lies outside it
 * gives what x86 conversions give. */
CV_INLINE cv_hi64 cvi_tou64_f64(cv_hf64 a) {
    cv_hi64 big = a >= 0x1p63;
    return cvi_toi64_f64(a - (cv_hf64)(big & (cv_hi64)((cv_hf64){} + 0x1p63))) ^ (big & INT64_MIN);
}
CV_INLINE cv_hi32 cvi_tou32_f64(cv_hf64 a) {
    cv_hi64 big = a >= 0x1p31;
    return cvi_toi32_f64(a - (cv_hf64)(big & (cv_hi64)((cv_hf64){} + 0x1p31))) ^
           (cvi_hi64_hi32(big) & INT32_MIN);
}
CV_INLINE cv_vi32 cvi_tou32_f32(cv_vf32 a) {
    cv_vi32 big = a >= 0x1p31f;
    return cvi_toi32_f32(a - (cv_vf32)(big & (cv_vi32)((cv_vf32){} + 0x1p31f))) ^ (big & INT32_MIN);
}
CVI_CAST(f32, f64, cvi_widen_f32(a))
CVI_CAST(f64, f32, cvi_narrow_f64(a))
CVI_CAST(f32, i32, cvi_toi32_f32(a))
CVI_CAST(f32, u32, (cv_vu32)cvi_tou32_f32(a))
CVI_CAST(f64, i32, cvi_cat_i32(cvi_toi32_f64(a.lo), cvi_toi32_f64(a.hi)))
CVI_CAST(f64, u32, (cv_vu32)cvi_cat_i32(cvi_tou32_f64(a.lo), cvi_tou32_f64(a.hi)))
CVI_CAST(f64, i64, ((cv_vi64){cvi_toi64_f64(a.lo), cvi_toi64_f64(a.hi)}))
CVI_CAST(f64, u64, ((cv_vu64){(cv_hu64)cvi_tou64_f64(a.lo), (cv_hu64)cvi_tou64_f64(a.hi)}))
CVI_CAST(f32, i64, cv_cast_f64_i64(cvi_widen_f32(a)))
CVI_CAST(f32, u64, cv_cast_f64_u64(cvi_widen_f32(a)))
CVI_CAST(i32, f32, cvi_vi32_vf32(a))
CVI_CAST(u32, f32, cvi_vu32_vf32(a))
CVI_CAST(i32, f64, ((cv_vf64){cvi_hi32_hf64(cvi_lo_i32(a)), cvi_hi32_hf64(cvi_hi_i32(a))}))
CVI_CAST(u32, f64, ((cv_vf64){cvi_hu32_hf64(cvi_lo_u32(a)), cvi_hu32_hf64(cvi_hi_u32(a))}))
CVI_CAST(i64, f64, ((cv_vf64){cvi_hi64_hf64(a.lo), cvi_hi64_hf64(a.hi)}))
CVI_CAST(u64, f64, ((cv_vf64){cvi_hu64_hf64(a.lo), cvi_hu64_hf64(a.hi)}))
CVI_CAST(i64, f32, cvi_cat_f32(cvi_hi64_hf32(a.lo), cvi_hi64_hf32(a.hi)))
CVI_CAST(u64, f32, cvi_cat_f32(cvi_hu64_hf32(a.lo), cvi_hu64_hf32(a.hi)))

/* 8/16-bit integers with everything that is not a flat integer. */
#define CVI_CAST_VIA(dt, hub)                                                                                \
    CVI_CAST(dt, i64, cv_cast_##hub##_i64(cv_cast_##dt##_##hub(a)))                                          \
    CVI_CAST(dt, u64, cv_cast_##hub##_u64(cv_cast_##dt##_##hub(a)))                                          \
    CVI_CAST(dt, f32, cv_cast_i32_f32(cv_cast_##dt##_i32(a)))                                                \
    CVI_CAST(dt, f64, cv_cast_i32_f64(cv_cast_##dt##_i32(a)))                                                \
    CVI_CAST(i64, dt, cv_cast_i32_##dt(cv_cast_i64_i32(a)))                                                  \
    CVI_CAST(u64, dt, cv_cast_i32_##dt(cv_cast_u64_i32(a)))                                                  \
    CVI_CAST(f32, dt, cv_cast_i32_##dt(cv_cast_f32_i32(a)))                                                  \
    CVI_CAST(f64, dt, cv_cast_i32_##dt(cv_cast_f64_i32(a)))
CVI_CAST_VIA(i8, i32) CVI_CAST_VIA(i16, i32) CVI_CAST_VIA(u8, u32) CVI_CAST_VIA(u16, u32)

#define CVI_CAST_BOOL(dt, T, cls)                                                                             \
    CV_INLINE cv_v##dt cv_cast_bool_##dt(cv_vbool a) { return cv_cast_i32_##dt(a & 1); }                      \
    CV_INLINE cv_vbool cv_cast_##dt##_bool(cv_v##dt a) { return cv_ne_##dt(a, cv_splat_##dt(0)); }
CVI_NUMERIC(CVI_CAST_BOOL)
CV_INLINE cv_vbool cv_cast_bool_bool(cv_vbool a) { return a; }

/* Shifts of 8- and 16-bit lanes, as promised above. */
#define CVI_SHIFT_NARROW(dt, wide)                                                                                     \
    CV_INLINE cv_v##dt cv_shl_##dt(cv_v##dt a, cv_v##dt b) {                                                           \
        return cv_cast_##wide##_##dt(cvi_shl_##wide(cv_cast_##dt##_##wide(a), cv_cast_##dt##_##wide(b)));              \
    }                                                                                                                  \
    CV_INLINE cv_v##dt cv_shr_##dt(cv_v##dt a, cv_v##dt b) {                                                           \
        return cv_cast_##wide##_##dt(cvi_shr_##wide(cv_cast_##dt##_##wide(a), cv_cast_##dt##_##wide(b)));              \
    }
CVI_SHIFT_NARROW(i8, i32) CVI_SHIFT_NARROW(i16, i32) CVI_SHIFT_NARROW(u8, u32) CVI_SHIFT_NARROW(u16, u32)

/* ---------------------------------------------------------------- half precision */

/* The bits of a half in the low 16 bits of each lane, and back. */
CV_INLINE cv_vu16 cvi_bits_bf16(cv_vf32 v) {
    cv_vu32 u = (cv_vu32)v;
    cv_vu32 even = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    cv_vu32 nan = (u >> 16) | 0x40;
    return (cv_vu16)cvi_vi32_vi16(cvi_blend_i32(v == v, (cv_vi32)even, (cv_vi32)nan));
}
CV_INLINE cv_vf32 cvi_from_bf16(cv_vu16 h) { return (cv_vf32)(cvi_vu16_vu32(h) << 16); }

#if CVI_GCC_AVX512
CV_INLINE cv_vu16 cvi_bits_f16(cv_vf32 v) { return (cv_vu16)__builtin_ia32_vcvtps2ph512_mask(v, 0, (cv_vi16){}, -1); }
CV_INLINE cv_vf32 cvi_from_f16(cv_vu16 h) { return __builtin_ia32_vcvtph2ps512_mask((cv_vi16)h, (cv_vf32){}, -1, 4); }
#elif CVI_GCC_AVX2
CV_INLINE cv_vu16 cvi_bits_f16(cv_vf32 v) { return (cv_vu16)__builtin_ia32_vcvtps2ph256(v, 0); }
CV_INLINE cv_vf32 cvi_from_f16(cv_vu16 h) { return __builtin_ia32_vcvtph2ps256((cv_vi16)h); }
#else
CV_INLINE cv_vu16 cvi_bits_f16(cv_vf32 v) {
    cv_vu32 u = (cv_vu32)v, magnitude = u & 0x7fffffff, sign = (u >> 16) & 0x8000;
    /* Normal results: rebias the exponent by 15 - 127 and round 13 bits away half to even. */
    cv_vu32 normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* Below 2^-14 the result counts multiples of 2^-24, the last place of 0.5: an addition rounds to them. */
    cv_vu32 tiny = (cv_vu32)((cv_vf32)magnitude + 0.5f) - 0x3f000000;
    cv_vi32 is_tiny = (cv_vi32)(magnitude < 0x38800000), is_big = (cv_vi32)(magnitude >= 0x477ff000);
    cv_vi32 is_nan = (cv_vi32)(magnitude > 0x7f800000);
    cv_vi32 h = cvi_blend_i32(is_tiny, (cv_vi32)tiny, (cv_vi32)normal);
    h = cvi_blend_i32(is_big, (cv_vi32){} + 0x7c00, h);
    h = cvi_blend_i32(is_nan, (cv_vi32)(((magnitude >> 13) & 0x3ff) | 0x7e00), h);
    return (cv_vu16)cvi_vi32_vi16(h | (cv_vi32)sign);
}
CV_INLINE cv_vf32 cvi_from_f16(cv_vu16 h) {
    cv_vu32 u = cvi_vu16_vu32(h), magnitude = u & 0x7fff, sign = (u & 0x8000) << 16;
    cv_vi32 normal = (cv_vi32)((magnitude << 13) + (112u << 23));
    cv_vi32 tiny = (cv_vi32)((cv_vf32)(magnitude + 0x3f000000) - 0.5f);
    cv_vi32 special = (cv_vi32)((magnitude << 13) + (224u << 23));
    cv_vi32 quiet = (cv_vi32)(magnitude > 0x7c00) & 0x400000;
    cv_vi32 r = cvi_blend_i32((cv_vi32)(magnitude < 0x400), tiny, normal);
    r = cvi_blend_i32((cv_vi32)(magnitude >= 0x7c00), special | quiet, r);
    return (cv_vf32)((cv_vu32)r | sign);
}
#endif

CV_INLINE cv_vf32 cv_round_f16(cv_vf32 v) { return cvi_from_f16(cvi_bits_f16(v)); }
CV_INLINE cv_vf32 cv_round_bf16(cv_vf32 v) { return cvi_from_bf16(cvi_bits_bf16(v)); }

/* float64 to float32 rounded to odd, so that a later rounding to a half type is the only one that counts. */
CV_INLINE cv_vf32 cvi_odd_f64(cv_vf64 a) {
    cv_vf32 f = cvi_narrow_f64(a);
    cv_vf64 back = cvi_widen_f32(f);
    cv_vi32 below = cvi_narrow_i64((cv_vi64){cvi_abs_f64(back.lo) < cvi_abs_f64(a.lo),
                                             cvi_abs_f64(back.hi) < cvi_abs_f64(a.hi)});
    cv_vi32 above = cvi_narrow_i64((cv_vi64){cvi_abs_f64(back.lo) > cvi_abs_f64(a.lo),
                                             cvi_abs_f64(back.hi) > cvi_abs_f64(a.hi)});
    cv_vi32 even = ((cv_vi32)f & 1) - 1;
    return (cv_vf32)((cv_vi32)f + ((above - below) & even)); /* masks are -1: below steps up, above down */
}
CV_INLINE cv_vf32 cv_cast_f64_f16r(cv_vf64 a) { return cv_round_f16(cvi_odd_f64(a)); }
CV_INLINE cv_vf32 cv_cast_f64_bf16r(cv_vf64 a) { return cv_round_bf16(cvi_odd_f64(a)); }

/* ---------------------------------------------------------------- memory */

#define CVI_MEMORY_FLAT(dt, T)                                                                             \
    CV_INLINE cv_v##dt cv_load_##dt(const T *p) { return *(const cv_v##dt##_mem *)p; }                     \
    CV_INLINE void cv_store_##dt(T *p, cv_v##dt v) { *(cv_v##dt##_mem *)p = v; }
#define CVI_MEMORY_PAIR(dt, T)                                                                             \
    CV_INLINE cv_v##dt cv_load_##dt(const T *p) {                                                          \
        return (cv_v##dt){*(const cv_h##dt##_mem *)p, *(const cv_h##dt##_mem *)(p + CV_LANES / 2)};        \
    }                                                                                                      \
    CV_INLINE void cv_store_##dt(T *p, cv_v##dt v) {                                                       \
        *(cv_h##dt##_mem *)p = v.lo;                                                                       \
        *(cv_h##dt##_mem *)(p + CV_LANES / 2) = v.hi;                                                      \
    }
#define CVI_MEMORY(dt, T, cls) CVI_MEMORY_##cls(dt, T)
CVI_NUMERIC(CVI_MEMORY)

/* The bool and half types are an integer vector in memory: RAW is its dtype, IN and OUT convert. */
CV_INLINE cv_vbool cvi_in_bool(cv_vu8 raw) { return cvi_vi8_vi32((cv_vi8)(raw != 0)); }
CV_INLINE cv_vu8 cvi_out_bool(cv_vbool v) { return (cv_vu8)cvi_vi32_vi8(v) & 1; }
/* X(dtype, C element type, vector dtype, raw dtype, from raw, to raw) */
#define CVI_STORED(X)                                                   \
    X(bool, uint8_t, bool, u8, cvi_in_bool, cvi_out_bool)               \
    X(f16, uint16_t, f32, u16, cvi_from_f16, cvi_bits_f16)              \
    X(bf16, uint16_t, f32, u16, cvi_from_bf16, cvi_bits_bf16)
#define CVI_MEMORY_STORED(dt, T, vt, raw, IN, OUT)                                           \
    CV_INLINE cv_v##vt cv_load_##dt(const T *p) { return IN(cv_load_##raw(p)); }             \
    CV_INLINE void cv_store_##dt(T *p, cv_v##vt v) { cv_store_##raw(p, OUT(v)); }
CVI_STORED(CVI_MEMORY_STORED)

/* The first n lanes only. A masked instruction where there is one, else a copy through a buffer. */
#define CVI_PART(dt, T, cls)                                                                     \
    CV_INLINE cv_v##dt cv_load_part_##dt(const T *p, int64_t n) {                                \
        T lanes[CV_LANES] = {0};                                                                 \
        for (int64_t l = 0; l < n; l++) lanes[l] = p[l];                                         \
        return cv_load_##dt(lanes);                                                              \
    }                                                                                            \
    CV_INLINE void cv_store_part_##dt(T *p, cv_v##dt v, int64_t n) {                             \
        T lanes[CV_LANES];                                                                       \
        cv_store_##dt(lanes, v);                                                                 \
        for (int64_t l = 0; l < n; l++) p[l] = lanes[l];                                         \
    }
#if CVI_GCC_AVX512
/* V, E: the vector and element types that the builtins take. */
#define CVI_LANE_BITS(n) ((1u << (n)) - 1)
#define CVI_PART_512(dt, T, LOAD, STORE, V, E)                                                             \
    CV_INLINE cv_v##dt cv_load_part_##dt(const T *p, int64_t n) {                                          \
        return (cv_v##dt)LOAD((const E *)p, (V){}, CVI_LANE_BITS(n));                                      \
    }                                                                                                      \
    CV_INLINE void cv_store_part_##dt(T *p, cv_v##dt v, int64_t n) { STORE((E *)p, (V)v, CVI_LANE_BITS(n)); }
#define CVI_PART_512_PAIR(dt, T, LOAD, STORE, V, E)                                                        \
    CV_INLINE cv_v##dt cv_load_part_##dt(const T *p, int64_t n) {                                          \
        unsigned bits = CVI_LANE_BITS(n);                                                                  \
        return (cv_v##dt){(cv_h##dt)LOAD((const E *)p, (V){}, (unsigned char)bits),                        \
                          (cv_h##dt)LOAD((const E *)(p + 8), (V){}, (unsigned char)(bits >> 8))};          \
    }                                                                                                      \
    CV_INLINE void cv_store_part_##dt(T *p, cv_v##dt v, int64_t n) {                                       \
        unsigned bits = CVI_LANE_BITS(n);                                                                  \
        STORE((E *)p, (V)v.lo, (unsigned char)bits);                                                       \
        STORE((E *)(p + 8), (V)v.hi, (unsigned char)(bits >> 8));                                          \
    }
CVI_PART_512(f32, float, __builtin_ia32_loadups512_mask, __builtin_ia32_storeups512_mask, cv_vf32, float)
CVI_PART_512(i32, int32_t, __builtin_ia32_loaddqusi512_mask, __builtin_ia32_storedqusi512_mask, cv_vi32, int)
CVI_PART_512(u32, uint32_t, __builtin_ia32_loaddqusi512_mask, __builtin_ia32_storedqusi512_mask, cv_vi32, int)
CVI_PART_512(i16, int16_t, __builtin_ia32_loaddquhi256_mask, __builtin_ia32_storedquhi256_mask, cvi_v16hi, short)
CVI_PART_512(u16, uint16_t, __builtin_ia32_loaddquhi256_mask, __builtin_ia32_storedquhi256_mask, cvi_v16hi, short)
CVI_PART_512(i8, int8_t, __builtin_ia32_loaddquqi128_mask, __builtin_ia32_storedquqi128_mask, cvi_v16qi, char)
CVI_PART_512(u8, uint8_t, __builtin_ia32_loaddquqi128_mask, __builtin_ia32_storedquqi128_mask, cvi_v16qi, char)
CVI_PART_512_PAIR(f64, double, __builtin_ia32_loadupd512_mask, __builtin_ia32_storeupd512_mask, cv_hf64, double)
CVI_PART_512_PAIR(i64, int64_t, __builtin_ia32_loaddqudi512_mask, __builtin_ia32_storedqudi512_mask, cvi_v8di,
                  long long)
CVI_PART_512_PAIR(u64, uint64_t, __builtin_ia32_loaddqudi512_mask, __builtin_ia32_storedqudi512_mask, cvi_v8di,
                  long long)
#elif CVI_GCC_AVX2
#define CVI_PART_256(dt, T, LOAD, STORE, V)                                                                      \
    CV_INLINE cv_v##dt cv_load_part_##dt(const T *p, int64_t n) {                                                \
        return (cv_v##dt)LOAD((const V *)p, cv_tail_mask(n));                                                    \
    }                                                                                                            \
    CV_INLINE void cv_store_part_##dt(T *p, cv_v##dt v, int64_t n) { STORE((V *)p, cv_tail_mask(n), (V)v); }
#define CVI_PART_256_PAIR(dt, T, LOAD, STORE, V)                                                                 \
    CV_INLINE cv_v##dt cv_load_part_##dt(const T *p, int64_t n) {                                                \
        cv_vi64 m = cvi_widen_i32(cv_tail_mask(n));                                                              \
        return (cv_v##dt){(cv_h##dt)LOAD((const V *)p, (cvi_v4di)m.lo),                                          \
                          (cv_h##dt)LOAD((const V *)(p + 4), (cvi_v4di)m.hi)};                                   \
    }                                                                                                            \
    CV_INLINE void cv_store_part_##dt(T *p, cv_v##dt v, int64_t n) {                                             \
        cv_vi64 m = cvi_widen_i32(cv_tail_mask(n));                                                              \
        STORE((V *)p, (cvi_v4di)m.lo, (V)v.lo);                                                                  \
        STORE((V *)(p + 4), (cvi_v4di)m.hi, (V)v.hi);                                                            \
    }
CVI_PART_256(f32, float, __builtin_ia32_maskloadps256, __builtin_ia32_maskstoreps256, cv_vf32)
CVI_PART_256(i32, int32_t, __builtin_ia32_maskloadd256, __builtin_ia32_maskstored256, cv_vi32)
CVI_PART_256(u32, uint32_t, __builtin_ia32_maskloadd256, __builtin_ia32_maskstored256, cv_vi32)
CVI_PART_256_PAIR(f64, double, __builtin_ia32_maskloadpd256, __builtin_ia32_maskstorepd256, cv_hf64)
CVI_PART_256_PAIR(i64, int64_t, __builtin_ia32_maskloadq256, __builtin_ia32_maskstoreq256, cvi_v4di)
CVI_PART_256_PAIR(u64, uint64_t, __builtin_ia32_maskloadq256, __builtin_ia32_maskstoreq256, cvi_v4di)
CVI_PART(i8, int8_t, FLAT) CVI_PART(u8, uint8_t, FLAT) CVI_PART(i16, int16_t, FLAT) CVI_PART(u16, uint16_t, FLAT)
#else
CVI_NUMERIC(CVI_PART)
#endif
#define CVI_PART_STORED(dt, T, vt, raw, IN, OUT)                                                                     \
    CV_INLINE cv_v##vt cv_load_part_##dt(const T *p, int64_t n) { return IN(cv_load_part_##raw(p, n)); }             \
    CV_INLINE void cv_store_part_##dt(T *p, cv_v##vt v, int64_t n) { cv_store_part_##raw(p, OUT(v), n); }
CVI_STORED(CVI_PART_STORED)

#define CVI_STRIDED_LOAD(dt, T, vt)                                                                       \
    CV_INLINE cv_v##vt cv_load_strided_##dt(const T *p, int64_t stride, int64_t n) {                      \
        T lanes[CV_LANES] = {0};                                                                          \
        for (int64_t l = 0; l < n; l++) lanes[l] = p[l * stride];                                         \
        return cv_load_##dt(lanes);                                                                       \
    }                                                                                                     \
    CV_INLINE cv_v##vt cv_gather_##dt(const T *p, const int64_t off[CV_LANES], int64_t n) {               \
        T lanes[CV_LANES] = {0};                                                                          \
        for (int64_t l = 0; l < n; l++) lanes[l] = p[off[l]];                                             \
        return cv_load_##dt(lanes);                                                                       \
    }
#define CVI_STRIDED_STORE(dt, T, vt)                                                                      \
    CV_INLINE void cv_store_strided_##dt(T *p, int64_t stride, cv_v##vt v, int64_t n) {                   \
        T lanes[CV_LANES];                                                                                \
        cv_store_##dt(lanes, v);                                                                          \
        for (int64_t l = 0; l < n; l++) p[l * stride] = lanes[l];                                         \
    }
#define CVI_STRIDED(dt, T, cls) CVI_STRIDED_LOAD(dt, T, dt)
#define CVI_STRIDED_NUMERIC(dt, T, cls) CVI_STRIDED_STORE(dt, T, dt)
#define CVI_STRIDED_STORED(dt, T, vt, raw, IN, OUT) CVI_STRIDED_LOAD(dt, T, vt) CVI_STRIDED_STORE(dt, T, vt)
#if CVI_GCC_AVX512
/* GATHER takes eight 64-bit offsets; JOIN makes a vector of the two results, which are of type H. */
#define CVI_GATHER_512(dt, T, GATHER, H, JOIN)                                                            \
    CV_INLINE cv_v##dt cvi_gather_##dt(const T *p, cv_vi64 off, int64_t n) {                              \
        unsigned bits = CVI_LANE_BITS(n);                                                                 \
        return JOIN(GATHER((H){}, p, (cvi_v8di)off.lo, (char)bits, sizeof(T)),                            \
                    GATHER((H){}, p, (cvi_v8di)off.hi, (char)(bits >> 8), sizeof(T)));                    \
    }                                                                                                     \
    CV_INLINE cv_v##dt cv_gather_##dt(const T *p, const int64_t off[CV_LANES], int64_t n) {               \
        return cvi_gather_##dt(p, cv_load_i64(off), n);                                                   \
    }                                                                                                     \
    CV_INLINE cv_v##dt cv_load_strided_##dt(const T *p, int64_t stride, int64_t n) {                      \
        return cvi_gather_##dt(p, cv_mul_i64(cv_iota_i64(0), cv_splat_i64(stride)), n);                   \
    }
#define CVI_JOIN_u32(lo, hi) ((cv_vu32)cvi_cat_i32(lo, hi))
#define CVI_JOIN_f64(lo, hi) ((cv_vf64){lo, hi})
#define CVI_JOIN_i64(lo, hi) ((cv_vi64){(cv_hi64)lo, (cv_hi64)hi})
#define CVI_JOIN_u64(lo, hi) ((cv_vu64){(cv_hu64)lo, (cv_hu64)hi})
CVI_GATHER_512(f32, float, __builtin_ia32_gatherdiv16sf, cv_hf32, cvi_cat_f32)
CVI_GATHER_512(i32, int32_t, __builtin_ia32_gatherdiv16si, cv_hi32, cvi_cat_i32)
CVI_GATHER_512(u32, uint32_t, __builtin_ia32_gatherdiv16si, cv_hi32, CVI_JOIN_u32)
CVI_GATHER_512(f64, double, __builtin_ia32_gatherdiv8df, cv_hf64, CVI_JOIN_f64)
CVI_GATHER_512(i64, int64_t, __builtin_ia32_gatherdiv8di, cvi_v8di, CVI_JOIN_i64)
CVI_GATHER_512(u64, uint64_t, __builtin_ia32_gatherdiv8di, cvi_v8di, CVI_JOIN_u64)
CVI_STRIDED(i8, int8_t, FLAT) CVI_STRIDED(u8, uint8_t, FLAT)
CVI_STRIDED(i16, int16_t, FLAT) CVI_STRIDED(u16, uint16_t, FLAT)
#else
CVI_NUMERIC(CVI_STRIDED)
#endif
CVI_NUMERIC(CVI_STRIDED_NUMERIC)
CVI_STORED(CVI_STRIDED_STORED)

/* ---------------------------------------------------------------- horizontal reductions
 *
 * Lane l combines with lane l ^ (length/2), then l ^ (length/4), ... : one order for every machine with the same
 * CV_LANES. A pair first combines its halves.
 */

#define CVI_SWAP4 1, 0, 3, 2
#define CVI_SWAP4_2 2, 3, 0, 1
#define CVI_SWAP8_1 1, 0, 3, 2, 5, 4, 7, 6
#define CVI_SWAP8_2 2, 3, 0, 1, 6, 7, 4, 5
#define CVI_SWAP8_4 4, 5, 6, 7, 0, 1, 2, 3
#define CVI_SWAP16_1 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define CVI_SWAP16_2 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define CVI_SWAP16_4 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define CVI_SWAP16_8 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#ifdef CVI_HAS_SHUFFLEVECTOR
#define CVI_PERMUTE(dt, v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define CVI_PERMUTE(dt, v, ...) __builtin_shuffle(v, (cvi_m##dt){__VA_ARGS__})
#endif
#define CVI_FOLD4(dt, F, v) v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP4_2)); v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP4));
#define CVI_FOLD8(dt, F, v)                                                                          \
    v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP8_4)); v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP8_2));            \
    v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP8_1));
#define CVI_FOLD16(dt, F, v)                                                                         \
    v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP16_8)); v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP16_4));          \
    v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP16_2)); v = F(v, CVI_PERMUTE(dt, v, CVI_SWAP16_1));
#if CV_LANES == 16
#define CVI_FOLD_FLAT CVI_FOLD16
#define CVI_FOLD_PAIR CVI_FOLD8
#else
#define CVI_FOLD_FLAT CVI_FOLD8
#define CVI_FOLD_PAIR CVI_FOLD4
#endif
#define CVI_WHOLE_FLAT(dt, F, v) v
#define CVI_WHOLE_PAIR(dt, F, v) F(v.lo, v.hi)
#define CVI_HORIZONTAL(name, F, dt, T, cls)                  \
    CV_INLINE T cv_##name##_##dt(cv_v##dt v) {               \
        cvi_p##dt r = CVI_WHOLE_##cls(dt, F, v);             \
        CVI_FOLD_##cls(dt, F, r)                             \
        return r[0];                                         \
    }
#define CVI_HORIZONTAL_SUM(dt, T, cls) \
    CVI_HORIZONTAL(hsum, CVI_ADD, dt, T, cls) CVI_HORIZONTAL(hprod, CVI_MUL, dt, T, cls)
#define CVI_HORIZONTAL_FLOAT(dt, T, cls) \
    CVI_HORIZONTAL(hmax, cvi_nanmax_##dt, dt, T, cls) CVI_HORIZONTAL(hmin, cvi_nanmin_##dt, dt, T, cls)
#define CVI_HORIZONTAL_INT(dt, T, cls) \
    CVI_HORIZONTAL(hmax, cvi_gtsel_##dt, dt, T, cls) CVI_HORIZONTAL(hmin, cvi_ltsel_##dt, dt, T, cls)
CVI_NUMERIC(CVI_HORIZONTAL_SUM)
CVI_FLOATS(CVI_HORIZONTAL_FLOAT)
CVI_INTEGERS(CVI_HORIZONTAL_INT)

#if CVI_GCC_AVX512
CV_INLINE int cv_hor(cv_vbool b) { return (unsigned short)__builtin_ia32_ptestmd512(b, b, -1) != 0; }
CV_INLINE int cv_hand(cv_vbool b) { return (unsigned short)__builtin_ia32_ptestmd512(b, b, -1) == 0xffff; }
#elif CVI_GCC_AVX2
CV_INLINE int cv_hor(cv_vbool b) { return __builtin_ia32_movmskps256((cv_vf32)b) != 0; }
CV_INLINE int cv_hand(cv_vbool b) { return __builtin_ia32_movmskps256((cv_vf32)b) == 0xff; }
#else
CV_INLINE int cv_hor(cv_vbool b) {
    CVI_FOLD_FLAT(i32, CVI_OR, b)
    return b[0] != 0;
}
CV_INLINE int cv_hand(cv_vbool b) {
    CVI_FOLD_FLAT(i32, CVI_AND, b)
    return b[0] != 0;
}
#endif

#endif
