/* half: bf16 and fp16 <-> fp32, in portable C. Both encoders round to nearest, ties to even. */
#ifndef BATON_KERNELS_HALF_H
#define BATON_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float half_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float bf16_to_f32(uint16_t h)
{
    return half_float((uint32_t)h << 16);
}
static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u = half_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) /* NaN: stay one, whatever the low bits were */
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 31)
        return half_float(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return half_float(sign | (exponent + 112) << 23 | fraction << 13);
    float f = (float)fraction * 0x1p-24f;
    return half_float(sign | half_bits(f));
}
static inline uint16_t f16_from_f32(float f)
{
    uint32_t u = half_bits(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) { /* subnormal: let the adder round to a multiple of 2^-24 */
        float m = half_float(u) + 0.5f;
        return (uint16_t)(sign | (half_bits(m) - half_bits(0.5f)));
    }
    return (uint16_t)(sign | ((u - 0x38000000u + 0xfffu + ((u >> 13) & 1)) >> 13));
}

#endif
