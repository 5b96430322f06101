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
    cv_vf32 half = cvi_rint_f32(n * 0.5f);
    return v * cvi_power_f32(half) * cvi_power_f32(n - half);
}
CV_INLINE cv_hf64 cvi_scale_f64(cv_hf64 v, cv_hf64 n) {
    cv_hf64 half = cvi_rint_f64(n * 0.5);
    return v * cvi_power_f64(half) * cvi_power_f64(n - half);
}
#endif

/* ---------------------------------------------------------------- exponentials, float32
 *
 * x = n ln2 + r, |r| <= ln2/2 (ln2 in two parts, the first of 9 bits so that n times it is exact);
 * e^r = 1 + r + r^2 q(r).
 */

#define CVI_LN2_HI 0x1.63p-1f
#define CVI_LN2_LO -0x1.bd0106p-13f

CV_INLINE cv_vf32 cv_exp_f32(cv_vf32 x) {
    x = CVI_CLAMP(f32, x, -104.0f, 89.0f);
    cv_vf32 n = cvi_rint_f32(x * 0x1.715476p+0f);
    cv_vf32 r = x - n * CVI_LN2_HI;
    r = r - n * CVI_LN2_LO;
    cv_vf32 q = CVI_P4(r, 0x1p-1f, 0x1.5554d8p-3f, 0x1.5554b2p-5f, 0x1.121076p-7f, 0x1.6d7c44p-10f);
    return cvi_scale_f32(1.0f + (r + (r * r) * q), n);
}

CV_INLINE cv_vf32 cv_exp2_f32(cv_vf32 x) {
    x = CVI_CLAMP(f32, x, -151.0f, 129.0f);
    cv_vf32 n = cvi_rint_f32(x);
    cv_vf32 r = x - n;
    cv_vf32 p = CVI_P6(r, 0x1.62e43p-1f, 0x1.ebfbep-3f, 0x1.c6b08ep-5f, 0x1.3b2a1cp-7f, 0x1.5d874cp-10f,
                      0x1.444008p-13f, 0x1.00dc4cp-16f);
    return cvi_scale_f32(1.0f + r * p, n);
}

/* 2^n (e^r - 1) + 2^n - 1, as 2^n ((e^r - 1) + (1 - 2^-n)). */
CV_INLINE cv_vf32 cv_expm1_f32(cv_vf32 a) {
    cv_vf32 x = CVI_CLAMP(f32, a, -20.0f, 89.0f);
    cv_vf32 n = cvi_rint_f32(x * 0x1.715476p+0f);
    cv_vf32 r = x - n * CVI_LN2_HI;
    r = r - n * CVI_LN2_LO;
    cv_vf32 q = CVI_P4(r, 0x1p-1f, 0x1.5554d8p-3f, 0x1.5554b2p-5f, 0x1.121076p-7f, 0x1.6d7c44p-10f);
    cv_vf32 p = r + (r * r) * q;
    cv_vf32 one = cvi_all_f32(1.0f);
    return CVI_KEEP_ZERO(f32, a, cvi_scale_f32(p + (one - cvi_scale_f32(one, -n)), n));
}

/* ---------------------------------------------------------------- logarithms, float32
 *
 * x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); log(1 + f) = f - f^2/2 + f^3 p(f).
 */

typedef struct { cv_vf32 k, f, rest; } cvi_log_parts; /* log x = k ln2 + f + rest */
CV_INLINE cvi_log_parts cvi_log_split(cv_vf32 x) {
    cv_vi32 tiny = x < 0x1p-126f;
    cv_vu32 u = (cv_vu32)cvi_blend_f32(tiny, x * 0x1p23f, x) + (0x3f800000 - 0x3f3504f3);
    cv_vf32 k = __builtin_convertvector((cv_vi32)(u >> 23) - 127 - (tiny & 23), cv_vf32);
    cv_vf32 f = (cv_vf32)((u & 0x7fffff) + 0x3f3504f3) - 1.0f;
    cv_vf32 p = CVI_P8(f, 0x1.555548p-2f, -0x1.ffffeap-3f, 0x1.99a512p-3f, -0x1.55641ap-3f, 0x1.232aa4p-3f,
                      -0x1.fafb58p-4f, 0x1.e6f714p-4f, -0x1.e53e1cp-4f, 0x1.1c26eep-4f);
    cv_vf32 f2 = f * f;
    return (cvi_log_parts){k, f, f2 * (f * p) - 0.5f * f2};
}
/* r for 0 < x < inf; log(0) = -inf, log(inf) = inf, NaN for the rest. */
CV_INLINE cv_vf32 cvi_log_special_f32(cv_vf32 x, cv_vf32 r) {
    r = cvi_blend_f32(x < CVI_INFF, r, x); /* inf and NaN */
    r = cvi_blend_f32(x < 0, cvi_all_f32(CVI_NANF), r);
    return cvi_blend_f32(x == 0, cvi_all_f32(-CVI_INFF), r);
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

#endif
