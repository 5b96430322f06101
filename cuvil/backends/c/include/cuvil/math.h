/* Elementary and special functions over CV_LANES lanes.
 *
 * float32: every function is vectorised. The hot ones (exp exp2 expm1 log log2 log10 tanh erf sin cos) compute in
 * float32; the others compute in float64 on the two halves and round once, which costs about twice as much and
 * leaves half an ulp. float64: exp exp2 expm1 log log2 log10 log1p tanh are vectorised, and sin cos up to |x| = 2^20;
 * the rest call the C library lane by lane (those kernels need libm). Measured bounds: docs/accuracy.md, made by
 * tests/backends/vector_math_accuracy.py.
 *
 * Method: argument reduction to a small interval, a minimax polynomial there (Remez exchange on the stated
 * interval, coefficients rounded to the working type), reconstruction by exponent arithmetic, then blends for the
 * special values. Nothing depends on FMA being fused or not: products that must be exact have short operands.
 */
#ifndef CUVIL_MATH_H
#define CUVIL_MATH_H

#include "cuvil/vec.h"

/* Horner's scheme: CVI_P<degree>(x, c0, c1, ...). */
#define CVI_P1(x, c, d) ((c) + (x) * (d))
#define CVI_P2(x, c, ...) ((c) + (x) * CVI_P1(x, __VA_ARGS__))
#define CVI_P3(x, c, ...) ((c) + (x) * CVI_P2(x, __VA_ARGS__))
#define CVI_P4(x, c, ...) ((c) + (x) * CVI_P3(x, __VA_ARGS__))
#define CVI_P5(x, c, ...) ((c) + (x) * CVI_P4(x, __VA_ARGS__))
#define CVI_P6(x, c, ...) ((c) + (x) * CVI_P5(x, __VA_ARGS__))
#define CVI_P7(x, c, ...) ((c) + (x) * CVI_P6(x, __VA_ARGS__))
#define CVI_P8(x, c, ...) ((c) + (x) * CVI_P7(x, __VA_ARGS__))
#define CVI_P9(x, c, ...) ((c) + (x) * CVI_P8(x, __VA_ARGS__))
#define CVI_P10(x, c, ...) ((c) + (x) * CVI_P9(x, __VA_ARGS__))
#define CVI_P11(x, c, ...) ((c) + (x) * CVI_P10(x, __VA_ARGS__))
#define CVI_P12(x, c, ...) ((c) + (x) * CVI_P11(x, __VA_ARGS__))
#define CVI_P13(x, c, ...) ((c) + (x) * CVI_P12(x, __VA_ARGS__))
#define CVI_P14(x, c, ...) ((c) + (x) * CVI_P13(x, __VA_ARGS__))
#define CVI_P15(x, c, ...) ((c) + (x) * CVI_P14(x, __VA_ARGS__))
#define CVI_P16(x, c, ...) ((c) + (x) * CVI_P15(x, __VA_ARGS__))
#define CVI_P17(x, c, ...) ((c) + (x) * CVI_P16(x, __VA_ARGS__))
#define CVI_P18(x, c, ...) ((c) + (x) * CVI_P17(x, __VA_ARGS__))
#define CVI_P19(x, c, ...) ((c) + (x) * CVI_P18(x, __VA_ARGS__))
#define CVI_P20(x, c, ...) ((c) + (x) * CVI_P19(x, __VA_ARGS__))
#define CVI_P21(x, c, ...) ((c) + (x) * CVI_P20(x, __VA_ARGS__))
#define CVI_P22(x, c, ...) ((c) + (x) * CVI_P21(x, __VA_ARGS__))

#define CVI_INFF __builtin_inff()
#define CVI_NANF __builtin_nanf("")
#define CVI_INF __builtin_inf()
#define CVI_NAN __builtin_nan("")

/* A constant in every lane of a part. */
CV_INLINE cv_vf32 cvi_all_f32(float x) { return x - (cv_vf32){}; }
CV_INLINE cv_hf64 cvi_all_f64(double x) { return x - (cv_hf64){}; }

/* x clamped to [lo, hi]; NaN stays. */
#define CVI_CLAMP(dt, x, lo, hi) cvi_gtsel_##dt(cvi_all_##dt(lo), cvi_ltsel_##dt(cvi_all_##dt(hi), x))

/* r where x is not zero, else x: gives odd functions their signed zero back. */
#define CVI_KEEP_ZERO(dt, x, r) cvi_blend_##dt((x) == 0, x, r)

/* x to the nearest integer, half to even, for |x| < 2^22 (2^51): adding 1.5 * 2^23 (2^52) leaves no bit for a fraction.
 * One multiply-add and a subtraction where x is a product; the rounding instruction takes two slots on AVX-512. */
CV_INLINE cv_vf32 cvi_nearest_f32(cv_vf32 x) { return (x + 0x1.8p23f) - 0x1.8p23f; }
CV_INLINE cv_hf64 cvi_nearest_f64(cv_hf64 x) { return (x + 0x1.8p52) - 0x1.8p52; }

/* ---------------------------------------------------------------- scaling by powers of two
 *
 * v * 2^n for an integral-valued n that may lead to overflow or a subnormal: two factors, so that only the last
 * product rounds. |n| < 300 (f32), < 2100 (f64); 1/4 < |v| < 4 or v == 0 or NaN.
 */
#if CVI_GCC_AVX512
CV_INLINE cv_vf32 cvi_scale_f32(cv_vf32 v, cv_vf32 n) { return __builtin_ia32_scalefps512_mask(v, n, v, -1, 4); }
CV_INLINE cv_hf64 cvi_scale_f64(cv_hf64 v, cv_hf64 n) { return __builtin_ia32_scalefpd512_mask(v, n, v, -1, 4); }
#else
/* Adding 1.5 * 2^23 (2^52) leaves the integer in the low bits; one shift moves it into the exponent field. */
CV_INLINE cv_vf32 cvi_power_f32(cv_vf32 n) { return (cv_vf32)((cv_vi32)(n + (0x1.8p23f + 127)) << 23); }
CV_INLINE cv_hf64 cvi_power_f64(cv_hf64 n) { return (cv_hf64)((cv_hi64)(n + (0x1.8p52 + 1023)) << 52); }
CV_INLINE cv_vf32 cvi_scale_f32(cv_vf32 v, cv_vf32 n) {
    cv_vf32 half = cvi_nearest_f32(n * 0.5f);
    return v * cvi_power_f32(half) * cvi_power_f32(n - half);
}
CV_INLINE cv_hf64 cvi_scale_f64(cv_hf64 v, cv_hf64 n) {
    cv_hf64 half = cvi_nearest_f64(n * 0.5);
    return v * cvi_power_f64(half) * cvi_power_f64(n - half);
}
#endif

/* cvi_scale of what belongs to x, and 0 where x < least. Masked scores are -inf: with AVX-512 they cost nothing extra,
 * while a scale that underflows takes a hundred cycles. x was clamped by CVI_FROM, which leaves small ones as they are
 * where the mask follows. */
#if CVI_GCC_AVX512
#define CVI_FROM(dt, x, lo, hi) cvi_ltsel_##dt(cvi_all_##dt(hi), x)
CV_INLINE cv_vf32 cvi_scale_from_f32(cv_vf32 v, cv_vf32 n, cv_vf32 x, float least) {
    /* Comparison 5 is "not less", true for NaN. */
    unsigned short lanes = __builtin_ia32_cmpps512_mask(x, cvi_all_f32(least), 5, -1, 4);
    return __builtin_ia32_scalefps512_mask(v, n, (cv_vf32){}, lanes, 4);
}
CV_INLINE cv_hf64 cvi_scale_from_f64(cv_hf64 v, cv_hf64 n, cv_hf64 x, double least) {
    unsigned char lanes = __builtin_ia32_cmppd512_mask(x, cvi_all_f64(least), 5, -1, 4);
    return __builtin_ia32_scalefpd512_mask(v, n, (cv_hf64){}, lanes, 4);
}
#else
#define CVI_FROM CVI_CLAMP
#define cvi_scale_from_f32(v, n, x, least) ((void)(x), cvi_scale_f32(v, n))
#define cvi_scale_from_f64(v, n, x, least) ((void)(x), cvi_scale_f64(v, n))
#endif

/* ---------------------------------------------------------------- exponentials, float32
 *
 * x = n ln2 + r, |r| <= ln2/2 (ln2 in two parts, the first of 9 bits so that n times it is exact);
 * e^r = 1 + r + r^2 q(r).
 */

#define CVI_LN2_HI 0x1.63p-1f
#define CVI_LN2_LO -0x1.bd0106p-13f

CV_INLINE cv_vf32 cv_exp_f32(cv_vf32 a) {
    cv_vf32 x = CVI_FROM(f32, a, -104.0f, 89.0f);
    cv_vf32 n = cvi_nearest_f32(x * 0x1.715476p+0f);
    cv_vf32 r = x - n * CVI_LN2_HI;
    r = r - n * CVI_LN2_LO;
    cv_vf32 q = CVI_P4(r, 0x1p-1f, 0x1.5554d8p-3f, 0x1.5554b2p-5f, 0x1.121076p-7f, 0x1.6d7c44p-10f);
    return cvi_scale_from_f32(1.0f + r * (1.0f + r * q), n, a, -104.0f);
}

CV_INLINE cv_vf32 cv_exp2_f32(cv_vf32 a) {
    cv_vf32 x = CVI_FROM(f32, a, -151.0f, 129.0f);
    cv_vf32 n = cvi_nearest_f32(x);
    cv_vf32 r = x - n;
    cv_vf32 p = CVI_P6(r, 0x1.62e43p-1f, 0x1.ebfbep-3f, 0x1.c6b08ep-5f, 0x1.3b2a1cp-7f, 0x1.5d874cp-10f,
                      0x1.444008p-13f, 0x1.00dc4cp-16f);
    return cvi_scale_from_f32(1.0f + r * p, n, a, -151.0f);
}

/* 2^n (e^r - 1) + 2^n - 1, as 2^n ((e^r - 1) + (1 - 2^-n)). */
CV_INLINE cv_vf32 cv_expm1_f32(cv_vf32 a) {
    cv_vf32 x = CVI_CLAMP(f32, a, -20.0f, 89.0f);
    cv_vf32 n = cvi_nearest_f32(x * 0x1.715476p+0f);
    cv_vf32 r = x - n * CVI_LN2_HI;
    r = r - n * CVI_LN2_LO;
    cv_vf32 q = CVI_P4(r, 0x1p-1f, 0x1.5554d8p-3f, 0x1.5554b2p-5f, 0x1.121076p-7f, 0x1.6d7c44p-10f);
    cv_vf32 p = r + (r * r) * q;
    cv_vf32 one = cvi_all_f32(1.0f);
    return CVI_KEEP_ZERO(f32, a, cvi_scale_f32(p + (one - cvi_scale_f32(one, -n)), n));
}

/* ---------------------------------------------------------------- logarithms, float32
 *
 * x = 2^k (1 + f), sqrt(1/2) <= 1 + f < 3/2; log(1 + f) = f - f^2/2 + f^3 p(f).
 */

typedef struct { cv_vf32 k, f, rest; } cvi_log_parts; /* log x = k ln2 + f + rest */
CV_INLINE cvi_log_parts cvi_log_split(cv_vf32 x) {
#if CVI_GCC_AVX512
    cv_vf32 m = __builtin_ia32_getmantps512_mask(x, 3, x, -1, 4); /* in [3/4, 3/2) */
    cv_vf32 k = __builtin_ia32_getexpps512_mask(x, x, -1, 4) - __builtin_ia32_getexpps512_mask(m, m, -1, 4);
    cv_vf32 f = m - 1.0f;
#else
    cv_vi32 tiny = x < 0x1p-126f;
    cv_vu32 u = (cv_vu32)cvi_blend_f32(tiny, x * 0x1p23f, x) + (0x3f800000 - 0x3f3504f3);
    cv_vf32 k = cvi_vi32_vf32((cv_vi32)(u >> 23) - 127 - (tiny & 23));
    cv_vf32 f = (cv_vf32)((u & 0x7fffff) + 0x3f3504f3) - 1.0f;
#endif
    cv_vf32 p = CVI_P8(f, 0x1.555548p-2f, -0x1.0000a6p-2f, 0x1.99a5p-3f, -0x1.551acap-3f, 0x1.23031ap-3f,
                      -0x1.023972p-3f, 0x1.f196e6p-4f, -0x1.b336fap-4f, 0x1.96fe4ap-5f);
    cv_vf32 f2 = f * f;
    return (cvi_log_parts){k, f, f2 * (f * p) - 0.5f * f2};
}

/* r for 0 < x < inf; log(0) = -inf, log(inf) = inf, NaN for the rest. */
CV_INLINE cv_vf32 cvi_log_special_f32(cv_vf32 x, cv_vf32 r) {
#if CVI_GCC_AVX512
    /* One result per class of x, four bits each: NaN NaN -inf r NaN inf NaN r. */
    return __builtin_ia32_fixupimmps512_mask(r, x, (cv_vi32){} + 0x03530422, 0, -1, 4);
#else
    r = cvi_blend_f32(x < CVI_INFF, r, x); /* inf and NaN */
    r = cvi_blend_f32(x < 0, cvi_all_f32(CVI_NANF), r);
    return cvi_blend_f32(x == 0, cvi_all_f32(-CVI_INFF), r);
#endif
}
CV_INLINE cv_vf32 cv_log_f32(cv_vf32 x) {
    cvi_log_parts s = cvi_log_split(x);
    cv_vf32 r = (s.rest + s.k * CVI_LN2_LO) + s.f;
    return cvi_log_special_f32(x, r + s.k * CVI_LN2_HI);
}
CV_INLINE cv_vf32 cv_log2_f32(cv_vf32 x) {
    cvi_log_parts s = cvi_log_split(x);
    const float frac = 0x1.c551d94ae0bf8p-2f; /* log2(e) - 1 */
    cv_vf32 r = s.rest * frac + s.f * frac;
    return cvi_log_special_f32(x, ((r + s.rest) + s.f) + s.k);
}
CV_INLINE cv_vf32 cv_log10_f32(cv_vf32 x) {
    cvi_log_parts s = cvi_log_split(x);
    /* log10(e) and log10(2), each as a short part and the rest. */
    cv_vf32 r = (s.rest + s.f) * 0x1.6f62a4p-11f + s.k * 0x1.04d426p-12f;
    r = r + s.rest * 0x1.bcp-2f;
    r = r + s.f * 0x1.bcp-2f;
    return cvi_log_special_f32(x, r + s.k * 0x1.34p-2f);
}

/* ---------------------------------------------------------------- tanh and erf, float32 */

/* x + x^3 p(x^2) up to 5/8, then 1 - 2 / (e^2|x| + 1). */
CV_INLINE cv_vf32 cv_tanh_f32(cv_vf32 x) {
    cv_vf32 a = cvi_abs_f32(x), z = x * x;
    cv_vf32 p = CVI_P4(z, -0x1.555532p-2f, 0x1.1106dep-3f, -0x1.b830e6p-5f, 0x1.51d138p-6f, -0x1.743b84p-8f);
    cv_vf32 small = a + (a * z) * p;
    cv_vf32 big = 1.0f - 2.0f / (cv_exp_f32(a + a) + 1.0f);
    return cvi_copysign_f32(cvi_blend_f32(a < 0.625f, small, big), x);
}

/* x + x p(x^2) up to 0.92, then 1 - e^p(|x|) with p = log erfc, which is below half an ulp of 1 from 3.92 on. */
CV_INLINE cv_vf32 cv_erf_f32(cv_vf32 x) {
    cv_vf32 a = cvi_abs_f32(x), z = x * x;
    cv_vf32 p = CVI_P6(z, 0x1.06eba8p-3f, -0x1.812744p-2f, 0x1.ce2e1cp-4f, -0x1.b80ff2p-6f, 0x1.54d42cp-8f,
                      -0x1.aaa2ep-11f, 0x1.5e062cp-14f);
    cv_vf32 small = a + a * p;
    cv_vf32 t = cvi_ltsel_f32(cvi_all_f32(3.95f), a);
    cv_vf32 e = CVI_P8(t, 0x1.84e62ep-13f, -0x1.212bc8p+0f, -0x1.44339ap-1f, -0x1.bc47aep-4f, 0x1.9e0a68p-6f,
                      -0x1.166862p-8f, 0x1.e0b2cep-12f, -0x1.a7baep-16f, 0x1.4b95eap-22f);
    cv_vf32 big = 1.0f - cv_exp_f32(e);
    return cvi_copysign_f32(cvi_blend_f32(a < 0.92f, small, big), x);
}

/* ---------------------------------------------------------------- float64 cores, over parts */

CV_INLINE cv_hf64 cvi_log_special_f64(cv_hf64 x, cv_hf64 r) {
    r = cvi_blend_f64(x < CVI_INF, r, x); /* inf and NaN */
    r = cvi_blend_f64(x < 0, cvi_all_f64(CVI_NAN), r);
    return cvi_blend_f64(x == 0, cvi_all_f64(-CVI_INF), r);
}

#define CVI_LN2_HI64 0x1.62e42fee00000p-1 /* 32 bits */
#define CVI_LN2_LO64 0x1.a39ef35793c76p-33
#define CVI_PI 0x1.921fb54442d18p+1
#define CVI_PI_2 0x1.921fb54442d18p+0

/* e^r - 1 for |r| <= ln2/2. */
CV_INLINE cv_hf64 cvi_expm1_small(cv_hf64 r) {
    cv_hf64 q = CVI_P10(r, 0x1p-1, 0x1.5555555555557p-3, 0x1.5555555555558p-5, 0x1.111111110ff87p-7,
                      0x1.6c16c16c14fd8p-10, 0x1.a01a01aca0673p-13, 0x1.a01a01adc39efp-16, 0x1.71ddffeeba07cp-19,
                      0x1.27e4caed84ba3p-22, 0x1.af5292008f816p-26, 0x1.1f8e70ad312ffp-29);
    return r + (r * r) * q;
}
CV_INLINE cv_hf64 cvi_exp(cv_hf64 a) {
    cv_hf64 x = CVI_FROM(f64, a, -746.0, 710.0);
    cv_hf64 n = cvi_nearest_f64(x * 0x1.71547652b82fep+0);
    cv_hf64 r = x - n * CVI_LN2_HI64;
    return cvi_scale_from_f64(1.0 + cvi_expm1_small(r - n * CVI_LN2_LO64), n, a, -746.0);
}
CV_INLINE cv_hf64 cvi_exp2(cv_hf64 a) {
    cv_hf64 x = CVI_FROM(f64, a, -1076.0, 1025.0);
    cv_hf64 n = cvi_nearest_f64(x);
    return cvi_scale_from_f64(1.0 + cvi_expm1_small((x - n) * 0x1.62e42fefa39efp-1), n, a, -1076.0);
}
CV_INLINE cv_hf64 cvi_expm1(cv_hf64 a) {
    cv_hf64 x = CVI_CLAMP(f64, a, -40.0, 710.0);
    cv_hf64 n = cvi_nearest_f64(x * 0x1.71547652b82fep+0);
    cv_hf64 r = x - n * CVI_LN2_HI64;
    cv_hf64 p = cvi_expm1_small(r - n * CVI_LN2_LO64), one = cvi_all_f64(1.0);
    return CVI_KEEP_ZERO(f64, a, cvi_scale_f64(p + (one - cvi_scale_f64(one, -n)), n));
}

/* x = 2^k (1 + f); with s = f / (2 + f), log(1 + f) = 2 atanh s = f - (f^2/2 - s (f^2/2 + z p(z))), z = s^2. */
typedef struct { cv_hf64 k, f, rest; } cvi_log_parts64; /* log x = k ln2 + f - rest, for 0 < x < inf */
CV_INLINE cvi_log_parts64 cvi_log_split64(cv_hf64 x) {
    cv_hi64 tiny = x < 0x1p-1022;
    cv_hu64 u = (cv_hu64)cvi_blend_f64(tiny, x * 0x1p52, x) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
    cv_hf64 k = (cv_hf64)((u >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
    k = k - (cv_hf64)(tiny & (cv_hi64)cvi_all_f64(52));
    cv_hf64 f = (cv_hf64)((u & 0xfffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;
    cv_hf64 s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    cv_hf64 p = CVI_P6(z, 0x1.555555555558fp-1, 0x1.99999999808f2p-2, 0x1.249249417ce45p-2, 0x1.c71c524fcb0f3p-3,
                      0x1.7466343065139p-3, 0x1.39a2822d0a51p-3, 0x1.2f00118a8a753p-3);
    return (cvi_log_parts64){k, f, half - s * (half + z * p)};
}
CV_INLINE cv_hf64 cvi_log(cv_hf64 x) {
    cvi_log_parts64 t = cvi_log_split64(x);
    return cvi_log_special_f64(x, t.k * CVI_LN2_HI64 - ((t.rest - t.k * CVI_LN2_LO64) - t.f));
}
CV_INLINE cv_hf64 cvi_log2(cv_hf64 x) {
    cvi_log_parts64 t = cvi_log_split64(x);
    const double frac = 0x1.c551d94ae0bf8p-2; /* log2(e) - 1 */
    return cvi_log_special_f64(x, ((t.f * frac - t.rest * frac) - t.rest + t.f) + t.k);
}
CV_INLINE cv_hf64 cvi_log10(cv_hf64 x) {
    cvi_log_parts64 t = cvi_log_split64(x);
    cv_hf64 m = (t.f - t.rest) * 0x1.bcb7b1526e50ep-2; /* log10(e); log10(2) in two parts */
    return cvi_log_special_f64(x, (t.k * 0x1.9fef311f12b36p-42 + m) + t.k * 0x1.34413509f6000p-2);
}
/* With u = fl(1 + x), log u + (x - (u - 1)) / u; the correction is what the sum rounded away. */
CV_INLINE cv_hf64 cvi_log1p(cv_hf64 x) {
    cv_hf64 u = 1.0 + x;
    cv_hf64 lost = cvi_blend_f64(u > 0x1p53, 1.0 - (u - x), x - (u - 1.0));
    cvi_log_parts64 t = cvi_log_split64(u);
    cv_hf64 c = cvi_blend_f64((u > 0) & (u < CVI_INF), lost / u, cvi_all_f64(0));
    cv_hf64 r = cvi_log_special_f64(u, t.k * CVI_LN2_HI64 - (((t.rest - c) - t.k * CVI_LN2_LO64) - t.f));
    return CVI_KEEP_ZERO(f64, x, r);
}

/* Polynomials on [-pi/4, pi/4]. */
CV_INLINE cv_hf64 cvi_sin_small(cv_hf64 r) {
    cv_hf64 z = r * r;
    cv_hf64 p = CVI_P5(z, -0x1.5555555555549p-3, 0x1.111111110f85bp-7, -0x1.a01a019c0ae75p-13, 0x1.71de35702bdeap-19,
                      -0x1.ae5e5f42f8918p-26, 0x1.5d90bb4ef2f1ap-33);
    return r + (r * z) * p;
}
CV_INLINE cv_hf64 cvi_cos_small(cv_hf64 r) {
    cv_hf64 z = r * r;
    cv_hf64 p = CVI_P5(z, 0x1.555555555554dp-5, -0x1.6c16c16c1549ap-10, 0x1.a01a019cf2f9cp-16, -0x1.27e4f83257d1p-22,
                      0x1.1eea03d26d8f2p-29, -0x1.8fb982caac51p-37), half = 0.5 * z, w = 1.0 - half;
    return w + (((1.0 - w) - half) + (z * z) * p);
}

/* atan t for 0 <= t <= 1 to 2^-39: enough for one rounding to float32. */
CV_INLINE cv_hf64 cvi_atan_unit(cv_hf64 t) {
    cv_hf64 z = t * t;
    cv_hf64 p = CVI_P13(z, 0x1.fffffffffd0ddp-1, -0x1.5555554bcf519p-2, 0x1.9999947d8a43ap-3, -0x1.2491be76a345ap-3,
                      0x1.c70d016658fbap-4, -0x1.73d80614b2ff6p-4, 0x1.3821c0a3a19dbp-4, -0x1.057cf01bde058p-4,
                      0x1.a03fbce29e1ccp-5, -0x1.24e61785d0535p-5, 0x1.4e025e01139fbp-6, -0x1.16d35160934f1p-7,
                      0x1.279f50e7d8334p-9, -0x1.26731fbbe12ffp-12);
    return t * p;
}
CV_INLINE cv_hf64 cvi_atan(cv_hf64 x) {
    cv_hf64 a = cvi_abs_f64(x);
    cv_hi64 big = a > 1;
    cv_hf64 p = cvi_atan_unit(cvi_blend_f64(big, 1.0 / a, a));
    return cvi_copysign_f64(cvi_blend_f64(big, CVI_PI_2 - p, p), x);
}

/* ---------------------------------------------------------------- float32 by one rounding of float64
 *
 * Arguments are float32 values: squares are exact, (1-x)(1+x) is good to the last place, and nothing overflows or
 * becomes subnormal before the final conversion.
 */

#define CVI_NARROWED1(name)                                                               \
    CV_FUNC cv_vf32 cv_##name##_f32(cv_vf32 a) {                                          \
        cv_vf64 w = cvi_widen_f32(a);                                                     \
        return cvi_narrow_f64((cv_vf64){cvi_##name##32(w.lo), cvi_##name##32(w.hi)});     \
    }
#define CVI_NARROWED2(name)                                                                               \
    CV_FUNC cv_vf32 cv_##name##_f32(cv_vf32 a, cv_vf32 b) {                                               \
        cv_vf64 v = cvi_widen_f32(a), w = cvi_widen_f32(b);                                               \
        return cvi_narrow_f64((cv_vf64){cvi_##name##32(v.lo, w.lo), cvi_##name##32(v.hi, w.hi)});         \
    }

/* Below 2^-24, where 1 + x drops bits of x, log(1 + x) = x - x^2/2. */
CV_INLINE cv_hf64 cvi_log1p32(cv_hf64 x) {
    return cvi_blend_f64(cvi_abs_f64(x) < 0x1p-24, x - 0.5 * x * x, cvi_log(1.0 + x));
}
CV_INLINE cv_hf64 cvi_sinh32(cv_hf64 x) {
    cv_hf64 a = cvi_abs_f64(x), e = cvi_exp(cvi_ltsel_f64(cvi_all_f64(100.0), a));
    return cvi_blend_f64(a < 0x1p-10, x + (x * x) * x * (1.0 / 6), cvi_copysign_f64(0.5 * (e - 1.0 / e), x));
}
CV_INLINE cv_hf64 cvi_cosh32(cv_hf64 x) {
    cv_hf64 e = cvi_exp(cvi_ltsel_f64(cvi_all_f64(100.0), cvi_abs_f64(x)));
    return 0.5 * (e + 1.0 / e);
}
CV_INLINE cv_hf64 cvi_asinh32(cv_hf64 x) {
    cv_hf64 a = cvi_abs_f64(x), r = cvi_sqrt_f64(a * a + 1.0);
    /* a + r - 1 without its cancellation. */
    cv_hf64 y = cvi_log(1.0 + (a + a * a / (1.0 + r)));
    y = cvi_blend_f64(a < CVI_INF, y, a);
    return cvi_copysign_f64(cvi_blend_f64(a < 0x1p-12, a - (a * a) * a * (1.0 / 6), y), x);
}
CV_INLINE cv_hf64 cvi_acosh32(cv_hf64 x) {
    cv_hf64 t = x - 1.0, y = cvi_log(1.0 + (t + cvi_sqrt_f64(t * (x + 1.0))));
    return cvi_blend_f64(x >= 1.0, cvi_blend_f64(x > 1.0, y, cvi_all_f64(0)), cvi_all_f64(CVI_NAN));
}
CV_INLINE cv_hf64 cvi_atanh32(cv_hf64 x) {
    cv_hf64 y = 0.5 * cvi_log((1.0 + x) / (1.0 - x));
    return cvi_blend_f64(cvi_abs_f64(x) < 0x1p-12, x + (x * x) * x * (1.0 / 3), y);
}
CV_INLINE cv_hf64 cvi_atan32(cv_hf64 x) { return cvi_atan(x); }
CV_INLINE cv_hf64 cvi_asin32(cv_hf64 x) { return cvi_atan(x / cvi_sqrt_f64((1.0 - x) * (1.0 + x))); }
CV_INLINE cv_hf64 cvi_acos32(cv_hf64 x) { return 2.0 * cvi_atan(cvi_sqrt_f64((1.0 - x) / (1.0 + x))); }
CV_INLINE cv_hf64 cvi_atan232(cv_hf64 y, cv_hf64 x) {
    cv_hf64 ay = cvi_abs_f64(y), ax = cvi_abs_f64(x);
    cv_hi64 steep = ay > ax;
    cv_hf64 t = cvi_blend_f64(steep, ax, ay) / cvi_blend_f64(steep, ay, ax);
    t = cvi_blend_f64((ay == ax) & (ay == 0), cvi_all_f64(0), t);
    t = cvi_blend_f64((ay == ax) & (ay == CVI_INF), cvi_all_f64(1), t);
    cv_hf64 p = cvi_atan_unit(t);
    p = cvi_blend_f64(steep, CVI_PI_2 - p, p);
    p = cvi_blend_f64(cvi_signbit_f64(x), CVI_PI - p, p);
    return cvi_copysign_f64(p, y);
}
CV_INLINE cv_hf64 cvi_hypot32(cv_hf64 x, cv_hf64 y) {
    cv_hi64 inf = cvi_isinf_f64(x) | cvi_isinf_f64(y);
    return cvi_blend_f64(inf, cvi_all_f64(CVI_INF), cvi_sqrt_f64(x * x + y * y));
}
/* e^(-x^2) erfcx(|x|), erfcx(t) = p(q) / (1 + 2t) with q = (t - 3)/(t + 3) for t <= 10.2, where the result is 0. */
CV_INLINE cv_hf64 cvi_erfc32(cv_hf64 x) {
    cv_hf64 t = cvi_ltsel_f64(cvi_all_f64(10.2), cvi_abs_f64(x)), q = (t - 3.0) / (t + 3.0);
    cv_hf64 p = CVI_P13(q, 0x1.40c522d7ecdffp+0, -0x1.15c084c5097eap-3, -0x1.85a15d1c64e05p-5, 0x1.098368c9003dep-3,
                      -0x1.e88b72b76e922p-4, 0x1.17c9e5f365277p-4, -0x1.8577bfe325973p-6, 0x1.4bb82c15b8d43p-9,
                      0x1.f058d268026ccp-10, -0x1.9a10354a676cbp-11, -0x1.f6349586bf809p-14, 0x1.f64e9695e44bdp-14,
                      0x1.6a139a8459babp-16, -0x1.13be790916c95p-18);
    cv_hf64 r = cvi_exp(-(t * t)) * p / (1.0 + 2.0 * t);
    return cvi_blend_f64(x < 0, 2.0 - r, r);
}
CVI_NARROWED1(log1p) CVI_NARROWED1(sinh) CVI_NARROWED1(cosh) CVI_NARROWED1(asinh) CVI_NARROWED1(acosh)
CVI_NARROWED1(atanh) CVI_NARROWED1(atan) CVI_NARROWED1(asin) CVI_NARROWED1(acos) CVI_NARROWED1(erfc)
CVI_NARROWED2(atan2) CVI_NARROWED2(hypot)

/* |x|^y = 2^(y log2 |x|), then the sign and C99's special cases. */
CV_INLINE cv_hf64 cvi_pow32(cv_hf64 x, cv_hf64 y) {
    cv_hf64 ax = cvi_abs_f64(x), ay = cvi_abs_f64(y);
    cv_hf64 r = cvi_exp2(y * cvi_log2(ax));
    /* y log2|x| is inf * 0 for |x| = 1, y = inf, where the answer is 1. */
    r = cvi_blend_f64((ax == 1) & (ay == CVI_INF), cvi_all_f64(1), r);
    cv_hi64 integral = cvi_trunc_f64(y) == y; /* infinities too */
    cv_hf64 half = y * 0.5;
    cv_hi64 odd = integral & (cvi_trunc_f64(half) != half);
    r = (cv_hf64)((cv_hi64)r ^ ((cv_hi64)x & odd & INT64_MIN));
    r = cvi_blend_f64((x < 0) & (ax < CVI_INF) & ~integral, cvi_all_f64(CVI_NAN), r);
    return cvi_blend_f64((x == 1) | (y == 0), cvi_all_f64(1), r);
}
CVI_NARROWED2(pow)

/* The next float is the next integer on the number line that sign and magnitude make. */
CV_FUNC cv_vf32 cv_nextafter_f32(cv_vf32 a, cv_vf32 b) {
    cv_vi32 away = ((a < b) ^ ((cv_vi32)a < 0)) | 1; /* -1 towards larger magnitude, 1 towards smaller */
    cv_vi32 r = (cv_vi32)a - away;
    r = cvi_blend_i32(a == 0, ((cv_vi32)b & INT32_MIN) | 1, r);
    r = cvi_blend_i32(a == b, (cv_vi32)b, r);
    return cvi_blend_f32((a != a) | (b != b), a + b, (cv_vf32)r);
}

/* ---------------------------------------------------------------- gamma, float32
 *
 * lgamma x for x >= 0. On [1, 3), (x - 1)(x - 2) p(x - 2): exact at its zeros; [0, 1) by lgamma(x + 1) - log x.
 * From 3 on Stirling's series at x or, below 8, at x + 5 less the log of the product between.
 */
CV_INLINE cv_hf64 cvi_lgamma_positive(cv_hf64 x) {
    cv_hi64 low = x < 1, mid = x < 3, shifted = x < 8;
    cv_hf64 m = cvi_blend_f64(low, x + 1.0, cvi_ltsel_f64(cvi_all_f64(3.0), x)), t = m - 2.0;
    cv_hf64 p = CVI_P22(t, 0x1.b0ee6072093b5p-2, -0x1.9ae6509ea2122p-4, 0x1.0e0c9df2a06c7p-5, -0x1.95ce2237ce91p-7,
                      0x1.47974841d550ap-8, -0x1.1451231934aeep-9, 0x1.dfebd918c9458p-11, -0x1.a969d617de243p-12,
                      0x1.7ed5e18001316p-13, -0x1.5c9183a1a5665p-14, 0x1.404ab15568053p-15, -0x1.27a5216ec8765p-16,
                      0x1.1276a512f1eeep-17, -0x1.08eff2a826f77p-18, 0x1.fe131a02fc562p-20, -0x1.71dd4c0533627p-21,
                      0x1.245d820c925d1p-22, -0x1.84cfb5bbe4f65p-22, 0x1.c8330d846584cp-23, 0x1.0d2e99cc9a98ap-24,
                      -0x1.926b25eb80c14p-25, -0x1.74b6a0ff31f01p-25, 0x1.9a769b2ea83eap-26);
    cv_hf64 near = p * t * (m - 1.0) + 0.0; /* lgamma(1) is 0, not -0 */

    cv_hf64 y = cvi_blend_f64(shifted, x + 5.0, x), i = 1.0 / y, z = i * i;
    cv_hf64 series = i * CVI_P5(z, 1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360);
    cv_hf64 far = (y - 0.5) * cvi_log(y) - y + 0x1.d67f1c864beb5p-1 + series; /* log(2 pi) / 2 */
    cv_hf64 product = x * (x + 1.0) * (x + 2.0) * (x + 3.0) * (x + 4.0);
    /* One logarithm serves both: of x on [0, 1), of the product on [3, 8). */
    cv_hf64 l = cvi_log(cvi_blend_f64(low, x, cvi_blend_f64(shifted, product, cvi_all_f64(1.0))));
    cv_hf64 r = cvi_blend_f64(mid, cvi_blend_f64(low, near - l, near), far - l);
    return cvi_blend_f64(x == CVI_INF, x, r);
}
/* |sin(pi x)| from the exact distance to the nearest integer. */
CV_INLINE cv_hf64 cvi_sinpi_abs(cv_hf64 x) {
    cv_hf64 d = cvi_abs_f64(x - cvi_rint_f64(x));
    cv_hi64 upper = d > 0.25;
    cv_hf64 r = CVI_PI * cvi_blend_f64(upper, 0.5 - d, d);
    return cvi_blend_f64(upper, cvi_cos_small(r), cvi_sin_small(r));
}
/* log|gamma|: reflected for negative x by gamma(x) gamma(-x) = -pi / (x sin(pi x)). */
CV_INLINE cv_hf64 cvi_lgamma32(cv_hf64 x) {
    cv_hf64 a = cvi_abs_f64(x), r = cvi_lgamma_positive(a);
    cv_hf64 reflected = cvi_log(CVI_PI / (a * cvi_sinpi_abs(x))) - r;
    r = cvi_blend_f64((x < 0) & (a < CVI_INF), reflected, r);
    cv_hi64 pole = (x <= 0) & (cvi_trunc_f64(x) == x);
    return cvi_blend_f64(pole, cvi_all_f64(CVI_INF), r);
}
CV_INLINE cv_hf64 cvi_tgamma32(cv_hf64 x) {
    cv_hf64 r = cvi_exp(cvi_lgamma32(x)), fl = cvi_floor_f64(x) * 0.5;
    cv_hi64 negative = (x < 0) & (cvi_floor_f64(fl) != fl);
    r = (cv_hf64)((cv_hi64)r ^ (negative & INT64_MIN));
    r = cvi_blend_f64(x == 0, 1.0 / x, r);
    return cvi_blend_f64((x < 0) & (cvi_trunc_f64(x) == x), cvi_all_f64(CVI_NAN), r);
}
CVI_NARROWED1(lgamma) CVI_NARROWED1(tgamma)

/* ---------------------------------------------------------------- sin, cos, tan, float32
 *
 * x = n pi/2 + r, |r| <= pi/4, reduced in float64 with pi/2 = 25 bits + 53 bits, so that n times the first part is
 * exact for |x| < 2^27; beyond, lane by lane with an integer product by the bits of 2/pi (Payne and Hanek).
 */

/* 2/pi as a binary fraction, 32 bits a word. */
static const uint32_t cvi_two_over_pi[8] __attribute__((unused)) = {0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
     0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u};

/* The quadrant of x, finite with |x| >= 2^27, and what is left of it in radians. */
CV_FUNC int32_t cvi_reduce_large(float x, double *r) {
    union { float f; uint32_t u; } bits = {x};
    int shift = (int)((bits.u >> 23) & 255) - 150; /* |x| = mantissa * 2^shift, 4 <= shift <= 104 */
    uint64_t mantissa = (bits.u & 0x7fffff) | 0x800000;
    /* The bits of 2/pi up to index shift - 3 make multiples of 4 quadrants; take the 128 that follow. */
    int word = (shift - 2) / 32, bit = (shift - 2) % 32;
    unsigned __int128 window = 0;
    for (int i = 0; i < 4; i++) window = window << 32 | cvi_two_over_pi[word + i];
    if (bit) window = window << bit | cvi_two_over_pi[word + 4] >> (32 - bit);
    /* Two bits of whole quadrants, then the fraction, of which one half or more counts back from the next one. */
    unsigned __int128 turn = window * mantissa;
    int64_t fraction = (int64_t)(turn >> 62);
    int32_t quadrant = (int32_t)(turn >> 126) + (fraction < 0);
    *r = (double)fraction * (CVI_PI_2 * 0x1p-64);
    if (x < 0) {
        *r = -*r;
        quadrant = -quadrant;
    }
    return quadrant;
}
CV_FUNC void cvi_reduce_large_lanes(cv_vf32 x, cv_vf64 *r, cv_vi32 *quadrant) {
    for (int l = 0; l < CV_LANES; l++) {
        float v = x[l];
        if (!(__builtin_fabsf(v) >= 0x1p27f && __builtin_fabsf(v) < CVI_INFF)) continue;
        double rest;
        (*quadrant)[l] = cvi_reduce_large(v, &rest);
        if (l < CV_LANES / 2) r->lo[l] = rest;
        else r->hi[l - CV_LANES / 2] = rest;
    }
}
/* Adding 1.5 * 2^52 rounds and leaves the quadrant in the low bits. */
CV_INLINE cv_hf64 cvi_reduce_half(cv_hf64 x, cv_hi64 *quadrant) {
    cv_hf64 shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = shifted - 0x1.8p52;
    *quadrant = (cv_hi64)shifted;
    cv_hf64 r = x - n * 0x1.921fb50000000p+0;
    return r - n * 0x1.110b4611a6263p-26;
}
CV_INLINE cv_vf64 cvi_reduce(cv_vf32 x, cv_vi32 *quadrant) {
    cv_vf64 w = cvi_widen_f32(x);
    cv_vi64 q;
    cv_vf64 r = {cvi_reduce_half(w.lo, &q.lo), cvi_reduce_half(w.hi, &q.hi)};
    *quadrant = cvi_narrow_i64(q);
    if (__builtin_expect(cv_hor(cvi_abs_f32(x) >= 0x1p27f), 0)) cvi_reduce_large_lanes(x, &r, quadrant);
    return r;
}
/* sin(r + quadrant pi/2) */
CV_INLINE cv_vf32 cvi_sin_quadrant(cv_vf32 r, cv_vi32 quadrant) {
    cv_vf32 z = r * r;
    cv_vf32 ps = CVI_P2(z, -0x1.555546p-3f, 0x1.110752p-7f, -0x1.99496ep-13f);
    cv_vf32 pc = CVI_P2(z, 0x1.55554ap-5f, -0x1.6c0c8ap-10f, 0x1.9a00a4p-16f);
    cv_vf32 s = r + (r * z) * ps, c = (1.0f - 0.5f * z) + (z * z) * pc;
    cv_vf32 y = cvi_blend_f32((quadrant & 1) != 0, c, s);
    return (cv_vf32)((cv_vi32)y ^ ((quadrant << 30) & INT32_MIN));
}
CV_FUNC cv_vf32 cv_sin_f32(cv_vf32 x) {
    cv_vi32 quadrant;
    cv_vf32 r = cvi_narrow_f64(cvi_reduce(x, &quadrant));
    return CVI_KEEP_ZERO(f32, x, cvi_sin_quadrant(r, quadrant));
}
CV_FUNC cv_vf32 cv_cos_f32(cv_vf32 x) {
    cv_vi32 quadrant;
    cv_vf32 r = cvi_narrow_f64(cvi_reduce(x, &quadrant));
    return cvi_sin_quadrant(r, quadrant + 1);
}
CV_INLINE cv_hf64 cvi_tan_half(cv_hf64 r, cv_hi64 odd) {
    cv_hf64 s = cvi_sin_small(r), c = cvi_cos_small(r);
    return cvi_blend_f64(odd, -c, s) / cvi_blend_f64(odd, s, c);
}
CV_FUNC cv_vf32 cv_tan_f32(cv_vf32 x) {
    cv_vi32 quadrant;
    cv_vf64 r = cvi_reduce(x, &quadrant);
    cv_vi64 odd = cvi_widen_i32((quadrant & 1) != 0);
    cv_vf64 t = {cvi_tan_half(r.lo, odd.lo), cvi_tan_half(r.hi, odd.hi)};
    return CVI_KEEP_ZERO(f32, x, cvi_narrow_f64(t));
}

/* ---------------------------------------------------------------- float remainders */

/* Exact fmod of float32 values. Each round takes away q b with q cut to 24 bits, so that q b and the difference are
 * exact in float64; one round is enough for |a/b| < 2^24. Division may round q up: the sign of the rest tells. */
CV_INLINE cv_hf64 cvi_fmod32(cv_hf64 a, cv_hf64 b) {
    cv_hf64 m = cvi_abs_f64(b), r = cvi_abs_f64(a);
    cv_hi64 defined = (r < CVI_INF) & (m > 0), finite = defined & (m < CVI_INF);
    m = cvi_blend_f64(finite, m, cvi_all_f64(1.0));
    r = cvi_blend_f64(finite, r, cvi_all_f64(0.0));
    for (;;) {
        cv_hf64 q = (cv_hf64)((cv_hi64)cvi_trunc_f64(r / m) & ~(int64_t)0x1fffffff);
        r = r - q * m;
        cv_hi64 more = cvi_abs_f64(r) >= m;
        if (!cv_hor(cvi_cat_i32(cvi_hi64_hi32(more), (cv_hi32){}))) break;
    }
    r = cvi_blend_f64(r < 0, r + m, r);
    r = cvi_blend_f64(finite, cvi_copysign_f64(r, a), a); /* fmod(x, inf) = x */
    cv_hf64 nan = cvi_blend_f64(a != a, a, cvi_all_f64(CVI_NAN));
    return cvi_blend_f64(defined, r, nan);
}
CVI_NARROWED2(fmod)

/* NumPy's divmod of floats: Python's, from the exact remainder. */
#define CVI_FLOAT_DIVMOD(dt)                                                                                           \
    CV_INLINE cvi_p##dt cvi_rem_of_##dt(cvi_p##dt b, cvi_p##dt m) {                                                    \
        cvi_p##dt r = cvi_blend_##dt(((b < 0) ^ (m < 0)) != 0, m + b, m);                                              \
        r = cvi_blend_##dt(m == 0, cvi_copysign_##dt(m, b), r);                                                        \
        return cvi_blend_##dt(b == 0, m, r);                                                                           \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_floordiv_of_##dt(cvi_p##dt a, cvi_p##dt b, cvi_p##dt m) {                                  \
        cvi_p##dt d = (a - m) / b;                                                                                     \
        d = cvi_blend_##dt((m != 0) & ((b < 0) ^ (m < 0)), d - 1, d);                                                  \
        cvi_p##dt f = cvi_floor_##dt(d);                                                                               \
        f = cvi_blend_##dt(d - f > 0.5f, f + 1, f);                                                                    \
        f = cvi_blend_##dt(d == 0, cvi_copysign_##dt(d, a / b), f);                                                    \
        return cvi_blend_##dt(b == 0, a / b, f);                                                                       \
    }
CVI_FLOAT_DIVMOD(f32)
CVI_FLOAT_DIVMOD(f64)
CV_FUNC cv_vf32 cv_rem_f32(cv_vf32 a, cv_vf32 b) { return cvi_rem_of_f32(b, cv_fmod_f32(a, b)); }
CV_FUNC cv_vf32 cv_floordiv_f32(cv_vf32 a, cv_vf32 b) { return cvi_floordiv_of_f32(a, b, cv_fmod_f32(a, b)); }

/* ---------------------------------------------------------------- integer division and power
 *
 * Quotients of 8- to 32-bit integers come from float64, which holds their operands and is too fine to round a
 * quotient up to the next integer; 64-bit ones divide lane by lane. A divisor of 0 or -1 is replaced by 1 first:
 * x/0 is 0, and x/-1 is -x, which wraps for the least integer.
 */

#define CVI_SIGNED_DIVISION(dt, cls, Q)                                                                                \
    CV_INLINE cvi_p##dt cvi_divide_##dt(cvi_p##dt a, cvi_p##dt b) {                                                    \
        cvi_p##dt q = Q(a, cvi_blend_##dt((b == 0) | (b == -1), (cvi_p##dt){} + 1, b));                                \
        return cvi_blend_##dt(b == -1, -a, q) & (b != 0);                                                              \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_fmod_##dt(cvi_p##dt a, cvi_p##dt b) { return (a - cvi_divide_##dt(a, b) * b) & (b != 0); } \
    CV_INLINE cvi_p##dt cvi_rem_##dt(cvi_p##dt a, cvi_p##dt b) {                                                       \
        cvi_p##dt r = cvi_fmod_##dt(a, b);                                                                             \
        return r + (b & (r != 0) & ((r ^ b) < 0));                                                                     \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_floordiv_##dt(cvi_p##dt a, cvi_p##dt b) {                                                  \
        cvi_p##dt q = cvi_divide_##dt(a, b), r = a - q * b;                                                            \
        return q + ((b != 0) & (r != 0) & ((r ^ b) < 0));                                                              \
    }                                                                                                                  \
    CVI_DIVISIONS(dt, cls)
#define CVI_UNSIGNED_DIVISION(dt, cls, Q)                                                                              \
    CV_INLINE cvi_p##dt cvi_floordiv_##dt(cvi_p##dt a, cvi_p##dt b) {                                                  \
        return Q(a, b | ((cvi_p##dt)(b == 0) & 1)) & (cvi_p##dt)(b != 0);                                              \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_fmod_##dt(cvi_p##dt a, cvi_p##dt b) {                                                      \
        return (a - cvi_floordiv_##dt(a, b) * b) & (cvi_p##dt)(b != 0);                                                \
    }                                                                                                                  \
    CV_INLINE cvi_p##dt cvi_rem_##dt(cvi_p##dt a, cvi_p##dt b) { return cvi_fmod_##dt(a, b); }                         \
    CVI_DIVISIONS(dt, cls)
#define CVI_DIVISIONS(dt, cls)                                                                                         \
    CV_FUNC cv_v##dt cv_floordiv_##dt(cv_v##dt a, cv_v##dt b) {                                                        \
        return CVI_MAP2_##cls(cv_v##dt, cvi_floordiv_##dt, a, b);                                                      \
    }                                                                                                                  \
    CV_FUNC cv_v##dt cv_rem_##dt(cv_v##dt a, cv_v##dt b) { return CVI_MAP2_##cls(cv_v##dt, cvi_rem_##dt, a, b); }      \
    CV_FUNC cv_v##dt cv_fmod_##dt(cv_v##dt a, cv_v##dt b) { return CVI_MAP2_##cls(cv_v##dt, cvi_fmod_##dt, a, b); }

CV_INLINE cv_vi32 cvi_quotient_i32(cv_vi32 a, cv_vi32 b) {
    cv_vf64 x = cv_cast_i32_f64(a), y = cv_cast_i32_f64(b);
    return cv_cast_f64_i32((cv_vf64){x.lo / y.lo, x.hi / y.hi});
}
CV_INLINE cv_vu32 cvi_quotient_u32(cv_vu32 a, cv_vu32 b) {
    cv_vf64 x = cv_cast_u32_f64(a), y = cv_cast_u32_f64(b);
    return cv_cast_f64_u32((cv_vf64){x.lo / y.lo, x.hi / y.hi});
}
#define CVI_QUOTIENT_LANES(dt)                                                                 \
    CV_INLINE cv_h##dt cvi_quotient_##dt(cv_h##dt a, cv_h##dt b) {                             \
        for (int l = 0; l < CV_LANES / 2; l++) a[l] = a[l] / b[l];                             \
        return a;                                                                              \
    }
CVI_QUOTIENT_LANES(i64)
CVI_QUOTIENT_LANES(u64)
CVI_SIGNED_DIVISION(i32, FLAT, cvi_quotient_i32)
CVI_SIGNED_DIVISION(i64, PAIR, cvi_quotient_i64)
CVI_UNSIGNED_DIVISION(u32, FLAT, cvi_quotient_u32)
CVI_UNSIGNED_DIVISION(u64, PAIR, cvi_quotient_u64)

/* Quotients and remainders of narrow integers are those of the same 32-bit values, wrapped (INT_MIN / -1). */
#define CVI_VIA_32(name, dt, wide)                                                                           \
    CV_FUNC cv_v##dt cv_##name##_##dt(cv_v##dt a, cv_v##dt b) {                                              \
        return cv_cast_##wide##_##dt(cv_##name##_##wide(cv_cast_##dt##_##wide(a), cv_cast_##dt##_##wide(b))); \
    }
#define CVI_DIVISIONS_NARROW(dt, wide) \
    CVI_VIA_32(floordiv, dt, wide) CVI_VIA_32(rem, dt, wide) CVI_VIA_32(fmod, dt, wide)
CVI_DIVISIONS_NARROW(i8, i32) CVI_DIVISIONS_NARROW(i16, i32)
CVI_DIVISIONS_NARROW(u8, u32) CVI_DIVISIONS_NARROW(u16, u32)

/* Square and multiply until every exponent is used up; a negative exponent gives 0. */
#define CVI_INT_POWER(dt, NONNEGATIVE)                                                                     \
    CV_INLINE cvi_p##dt cvi_power_##dt(cvi_p##dt a, cvi_p##dt b) {                                         \
        cvi_p##dt keep = (cvi_p##dt)NONNEGATIVE, r = keep & 1;                                             \
        b &= keep;                                                                                         \
        while (CVI_ANY_##dt(b != 0)) {                                                                     \
            r = cvi_blend_##dt((b & 1) != 0, r * a, r);                                                    \
            a *= a;                                                                                        \
            b >>= 1;                                                                                       \
        }                                                                                                  \
        return r;                                                                                          \
    }
#define CVI_ANY_i32(m) cv_hor(m)
#define CVI_ANY_u32(m) cv_hor(m)
#define CVI_ANY_i64(m) cv_hor(cvi_cat_i32(cvi_hi64_hi32(m), (cv_hi32){}))
#define CVI_ANY_u64(m) CVI_ANY_i64(m)
CVI_INT_POWER(i32, (b >= 0)) CVI_INT_POWER(i64, (b >= 0))
CVI_INT_POWER(u32, ((cvi_pi32){} == 0)) CVI_INT_POWER(u64, ((cvi_pi64){} == 0))
CV_FUNC cv_vi32 cv_pow_i32(cv_vi32 a, cv_vi32 b) { return cvi_power_i32(a, b); }
CV_FUNC cv_vu32 cv_pow_u32(cv_vu32 a, cv_vu32 b) { return cvi_power_u32(a, b); }
CV_FUNC cv_vi64 cv_pow_i64(cv_vi64 a, cv_vi64 b) { return CVI_MAP2_PAIR(cv_vi64, cvi_power_i64, a, b); }
CV_FUNC cv_vu64 cv_pow_u64(cv_vu64 a, cv_vu64 b) { return CVI_MAP2_PAIR(cv_vu64, cvi_power_u64, a, b); }
CVI_VIA_32(pow, i8, i32) CVI_VIA_32(pow, i16, i32) CVI_VIA_32(pow, u8, u32) CVI_VIA_32(pow, u16, u32)

/* ---------------------------------------------------------------- float64 */

#define CVI_PAIRWISE(name) \
    CV_FUNC cv_vf64 cv_##name##_f64(cv_vf64 a) { return (cv_vf64){cvi_##name(a.lo), cvi_##name(a.hi)}; }
CVI_PAIRWISE(exp) CVI_PAIRWISE(exp2) CVI_PAIRWISE(expm1)
CVI_PAIRWISE(log) CVI_PAIRWISE(log2) CVI_PAIRWISE(log10) CVI_PAIRWISE(log1p)

/* With t = e^2|x| - 1: t / (t + 2), or where that is close to 1, 1 - 2 / (t + 2). */
CV_INLINE cv_hf64 cvi_tanh(cv_hf64 x) {
    cv_hf64 a = cvi_abs_f64(x), t = cvi_expm1(cvi_ltsel_f64(cvi_all_f64(44.0), a + a));
    cv_hf64 r = cvi_blend_f64(a < 0.5, t, cvi_all_f64(-2.0)) / (t + 2.0);
    return cvi_copysign_f64(cvi_blend_f64(a < 0.5, r, 1.0 + r), x);
}
CVI_PAIRWISE(tanh)

/* The C library, lane by lane. */
#define CVI_LIBM1(name)                                                            \
    CV_FUNC cv_vf64 cv_##name##_f64(cv_vf64 a) {                                   \
        double x[CV_LANES];                                                        \
        cv_store_f64(x, a);                                                        \
        for (int l = 0; l < CV_LANES; l++) x[l] = __builtin_##name(x[l]);          \
        return cv_load_f64(x);                                                     \
    }
#define CVI_LIBM2(name)                                                            \
    CV_FUNC cv_vf64 cv_##name##_f64(cv_vf64 a, cv_vf64 b) {                        \
        double x[CV_LANES], y[CV_LANES];                                           \
        cv_store_f64(x, a);                                                        \
        cv_store_f64(y, b);                                                        \
        for (int l = 0; l < CV_LANES; l++) x[l] = __builtin_##name(x[l], y[l]);    \
        return cv_load_f64(x);                                                     \
    }
CVI_LIBM1(tan) CVI_LIBM1(asin) CVI_LIBM1(acos) CVI_LIBM1(atan)
CVI_LIBM1(sinh) CVI_LIBM1(cosh) CVI_LIBM1(asinh) CVI_LIBM1(acosh) CVI_LIBM1(atanh)
CVI_LIBM1(erf) CVI_LIBM1(erfc)
CVI_LIBM2(pow) CVI_LIBM2(atan2) CVI_LIBM2(hypot) CVI_LIBM2(nextafter) CVI_LIBM2(fmod)

/* In long double, because C libraries' double tgamma is off by more than 4 ulp in places. */
CV_FUNC cv_vf64 cv_tgamma_f64(cv_vf64 a) {
    double x[CV_LANES];
    cv_store_f64(x, a);
    for (int l = 0; l < CV_LANES; l++) x[l] = (double)__builtin_tgammal(x[l]);
    return cv_load_f64(x);
}
/* The reentrant form: lgamma itself writes a global. */
double lgamma_r(double, int *);
CV_FUNC cv_vf64 cv_lgamma_f64(cv_vf64 a) {
    double x[CV_LANES];
    int sign;
    cv_store_f64(x, a);
    for (int l = 0; l < CV_LANES; l++) x[l] = lgamma_r(x[l], &sign);
    return cv_load_f64(x);
}
CV_FUNC cv_vf64 cv_rem_f64(cv_vf64 a, cv_vf64 b) {
    cv_vf64 m = cv_fmod_f64(a, b);
    return (cv_vf64){cvi_rem_of_f64(b.lo, m.lo), cvi_rem_of_f64(b.hi, m.hi)};
}
CV_FUNC cv_vf64 cv_floordiv_f64(cv_vf64 a, cv_vf64 b) {
    cv_vf64 m = cv_fmod_f64(a, b);
    return (cv_vf64){cvi_floordiv_of_f64(a.lo, b.lo, m.lo), cvi_floordiv_of_f64(a.hi, b.hi, m.hi)};
}

/* pi/2 in parts of 33, 33 and 53 bits, the first two exact times n for |x| < 2^20. */
CV_INLINE cv_hf64 cvi_sin_cos64(cv_hf64 x, int64_t quadrants) {
    cv_hf64 shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = shifted - 0x1.8p52;
    cv_hi64 quadrant = (cv_hi64)shifted + quadrants;
    cv_hf64 r = (x - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a600000p-34;
    r = r - n * 0x1.3198a2e037073p-69;
    cv_hf64 y = cvi_blend_f64((quadrant & 1) != 0, cvi_cos_small(r), cvi_sin_small(r));
    y = (cv_hf64)((cv_hi64)y ^ ((quadrant << 62) & INT64_MIN));
    return quadrants ? y : CVI_KEEP_ZERO(f64, x, y);
}
#define CVI_SIN_COS64(name, quadrants)                                                                             \
    CV_FUNC cv_vf64 cv_##name##_f64(cv_vf64 a) {                                                                   \
        cv_hi64 large = (cvi_abs_f64(a.lo) >= 0x1p20) | (cvi_abs_f64(a.hi) >= 0x1p20);                             \
        if (__builtin_expect(CVI_ANY_i64(large), 0)) {                                                             \
            double x[CV_LANES];                                                                                    \
            cv_store_f64(x, a);                                                                                    \
            for (int l = 0; l < CV_LANES; l++) x[l] = __builtin_##name(x[l]);                                      \
            return cv_load_f64(x);                                                                                 \
        }                                                                                                          \
        return (cv_vf64){cvi_sin_cos64(a.lo, quadrants), cvi_sin_cos64(a.hi, quadrants)};                          \
    }
CVI_SIN_COS64(sin, 0)
CVI_SIN_COS64(cos, 1)

#endif
