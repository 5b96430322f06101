/* Scalar access to array elements: memory types, register types, loads and stores for each dtype.
 *
 * For kernels whose control flow is per element (sorting, searching, scattering), where vectors do not pay.
 * For every dtype short DT:
 *   cv_elem_DT            the C type in memory (uint16_t for halves, uint8_t for bool)
 *   cv_elem_reg_DT        the C type that values are computed in (float for halves)
 *   cv_elem_get_DT(p)     load and widen;  cv_elem_put_DT(p, v) round (half to even) and store
 *   CV_ELEM_ID_DT         a distinct integer, usable in #if after pasting
 *   CV_ELEM_REG_DT        the dtype short of the register type (f32 for halves)
 */
#ifndef CUVIL_ELEMENT_H
#define CUVIL_ELEMENT_H

#include <stdint.h>
#include <string.h>

#define CV_ELEM_PASTE_(a, b) a##b
#define CV_ELEM_PASTE(a, b) CV_ELEM_PASTE_(a, b)

#define CV_ELEM_ID_bool 1
#define CV_ELEM_ID_i8 2
#define CV_ELEM_ID_i16 3
#define CV_ELEM_ID_i32 4
#define CV_ELEM_ID_i64 5
#define CV_ELEM_ID_u8 6
#define CV_ELEM_ID_u16 7
#define CV_ELEM_ID_u32 8
#define CV_ELEM_ID_u64 9
#define CV_ELEM_ID_f16 10
#define CV_ELEM_ID_bf16 11
#define CV_ELEM_ID_f32 12
#define CV_ELEM_ID_f64 13
#define CV_ELEM_ID(dt) CV_ELEM_PASTE(CV_ELEM_ID_, dt)
#define CV_ELEM_IS_FLOAT(dt) (CV_ELEM_ID(dt) >= CV_ELEM_ID_f16)
#define CV_ELEM_IS_BOOL(dt) (CV_ELEM_ID(dt) == CV_ELEM_ID_bool)

#define CV_ELEM_REG_bool bool
#define CV_ELEM_REG_i8 i8
#define CV_ELEM_REG_i16 i16
#define CV_ELEM_REG_i32 i32
#define CV_ELEM_REG_i64 i64
#define CV_ELEM_REG_u8 u8
#define CV_ELEM_REG_u16 u16
#define CV_ELEM_REG_u32 u32
#define CV_ELEM_REG_u64 u64
#define CV_ELEM_REG_f16 f32
#define CV_ELEM_REG_bf16 f32
#define CV_ELEM_REG_f32 f32
#define CV_ELEM_REG_f64 f64
#define CV_ELEM_REG(dt) CV_ELEM_PASTE(CV_ELEM_REG_, dt)

#define CV_ELEM_INLINE static inline __attribute__((always_inline, unused))

#define CV_ELEM_PLAIN_(dt, type)                                          \
  typedef type cv_elem_##dt;                                              \
  typedef type cv_elem_reg_##dt;                                          \
  CV_ELEM_INLINE type cv_elem_get_##dt(const type *p) { return *p; }      \
  CV_ELEM_INLINE void cv_elem_put_##dt(type *p, type v) { *p = v; }

CV_ELEM_PLAIN_(bool, uint8_t)
CV_ELEM_PLAIN_(i8, int8_t)
CV_ELEM_PLAIN_(i16, int16_t)
CV_ELEM_PLAIN_(i32, int32_t)
CV_ELEM_PLAIN_(i64, int64_t)
CV_ELEM_PLAIN_(u8, uint8_t)
CV_ELEM_PLAIN_(u16, uint16_t)
CV_ELEM_PLAIN_(u32, uint32_t)
CV_ELEM_PLAIN_(u64, uint64_t)
CV_ELEM_PLAIN_(f32, float)
CV_ELEM_PLAIN_(f64, double)
#undef CV_ELEM_PLAIN_

typedef uint16_t cv_elem_f16;
typedef uint16_t cv_elem_bf16;
typedef float cv_elem_reg_f16;
typedef float cv_elem_reg_bf16;

CV_ELEM_INLINE uint32_t cv_elem_bits_f32(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}

CV_ELEM_INLINE float cv_elem_from_bits_f32(uint32_t u) {
  float v;
  memcpy(&v, &u, 4);
  return v;
}

CV_ELEM_INLINE uint64_t cv_elem_bits_f64(double v) {
  uint64_t u;
  memcpy(&u, &v, 8);
  return u;
}

CV_ELEM_INLINE float cv_elem_get_bf16(const uint16_t *p) { return cv_elem_from_bits_f32((uint32_t)*p << 16); }

CV_ELEM_INLINE void cv_elem_put_bf16(uint16_t *p, float v) {
  uint32_t u = cv_elem_bits_f32(v);
  /* A NaN must not be rounded up to infinity: keep it quiet with its sign. */
  if ((u & 0x7fffffffu) > 0x7f800000u)
    *p = (uint16_t)((u >> 16) | 0x40u);
  else
    *p = (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

CV_ELEM_INLINE float cv_elem_get_f16(const uint16_t *p) {
  /* Shift exponent and mantissa into place, then rescale by 2^112: exact, and right for subnormals. */
  uint32_t h = *p, sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
  if ((h & 0x7c00u) == 0x7c00u) return cv_elem_from_bits_f32(sign | 0x7f800000u | rest);
  return cv_elem_from_bits_f32(cv_elem_bits_f32(cv_elem_from_bits_f32(rest) * 0x1p112f) | sign);
}

CV_ELEM_INLINE void cv_elem_put_f16(uint16_t *p, float v) {
  uint32_t u = cv_elem_bits_f32(v), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
  if (mag > 0x7f800000u)
    *p = (uint16_t)(sign | 0x7e00u);
  else if (mag >= 0x477ff000u) /* 65520 and above round to infinity */
    *p = (uint16_t)(sign | 0x7c00u);
  else if (mag < 0x38800000u) /* below 2^-14: adding 0.5 leaves the subnormal's bits, rounded by the FPU */
    *p = (uint16_t)(sign | (cv_elem_bits_f32(cv_elem_from_bits_f32(mag) + 0.5f) - 0x3f000000u));
  else
    *p = (uint16_t)(sign | ((mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13));
}

#endif
