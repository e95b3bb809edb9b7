/* kv: expanding 8-bit sub-blocks, for AVX2. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx2.h"

/* To the nearest bf16, ties to even, of numbers (never NaN unless a scale is). */
INLINE __m256i round_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_srli_epi32(u, 16);
}

/* 16 integers times two vectors of scales. */
INLINE __m256i expand(const int8_t *p, __m256 s0, __m256 s1)
{
    __m128i q = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m256 f0 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
    __m256 f1 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8)));
    __m256i both =
        _mm256_packus_epi32(round_bf16(_mm256_mul_ps(f0, s0)), round_bf16(_mm256_mul_ps(f1, s1)));
    return _mm256_permute4x64_epi64(both, 0xd8); /* the pack works within 128-bit halves */
}

void kv_expand_avx2(const uint8_t *sub, size_t head_dim, uint16_t *out)
{
    const int8_t *p = (const int8_t *)sub;
    const float *scales = (const float *)(const void *)(sub + 2 * KV_SUB * head_dim);
    const __m256i first = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    __m256 s[4];
    for (int i = 0; i < 4; i++) {
        __m256 k = _mm256_loadu_ps(scales + i / 2 * 8);
        s[i] = _mm256_permutevar8x32_ps(k, _mm256_add_epi32(first, _mm256_set1_epi32(i % 2 * 4)));
    }
    for (size_t d = 0; d < head_dim; d += 2, p += 32, out += 32) {
        _mm256_storeu_si256((__m256i *)(void *)out, expand(p, s[0], s[1]));
        _mm256_storeu_si256((__m256i *)(void *)(out + 16), expand(p + 16, s[2], s[3]));
    }
    const float *v = scales + KV_SUB;
    for (size_t pair = 0; pair < KV_SUB / 2; pair++, v += 2) {
        __m256 t = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)v));
        for (size_t d = 0; d < head_dim; d += 8, p += 16, out += 16)
            _mm256_storeu_si256((__m256i *)(void *)out, expand(p, t, t));
    }
}
