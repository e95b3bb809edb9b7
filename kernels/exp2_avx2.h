/* exp2_avx2: 2^x for 8 floats, and what the AVX2 kernels share. */
#ifndef BATON_KERNELS_EXP2_AVX2_H
#define BATON_KERNELS_EXP2_AVX2_H

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* As exp2_512, for x in -127..127 (clamped); below -126 the result is exactly 0. */
INLINE __m256 exp2_256(__m256 x)
{
    __m256 live = _mm256_cmp_ps(x, _mm256_set1_ps(-126), _CMP_GE_OQ);
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-126)), _mm256_set1_ps(127));
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(0.009582855236f), f, _mm256_set1_ps(0.055906434179f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.240240986305f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.693124192325f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1));
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_and_ps(live, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e)));
}

INLINE float sum_256(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
INLINE float max_256(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

/* The even and odd bf16 of eight pairs as floats. */
INLINE __m256 bf16_even(__m256i v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}
INLINE __m256 bf16_odd(__m256i v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
}
INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

#endif
