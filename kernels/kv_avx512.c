/* kv: appending a token and expanding 8-bit sub-blocks, for AVX-512. The pairs of a token's key are
 * 64 (bf16) or 32 (int8) bytes apart and are stored one by one. A vector of values is 16 dims x 2
 * tokens: the token's half of it is stored under a mask, because another thread may be writing the
 * other half. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

void kv_append_bf16_avx512(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                           bool zero_partner)
{
    uint32_t *pairs = (uint32_t *)sub + slot;
    uint16_t *values = (uint16_t *)sub + kv_v_index(head_dim, slot & ~(size_t)1, 0);
    const __mmask32 own = zero_partner ? 0xffffffff : slot % 2 ? 0xaaaaaaaa : 0x55555555;
    for (size_t d = 0; d < head_dim; d += 16) {
        _Alignas(32) uint32_t eight[8];
        _mm256_store_si256((__m256i *)(void *)eight,
                           (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(k + d)));
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++)
            pairs[(d / 2 + i) * KV_SUB] = eight[i];
        __m512i x = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(v + d)));
        _mm512_mask_storeu_epi16(values + 2 * d, own, slot % 2 ? _mm512_slli_epi32(x, 16) : x);
    }
}

/* head_dim numbers as integers in out; returns their scale. */
INLINE float quantise(const float *x, size_t n, int8_t *out)
{
    __m512 top = _mm512_setzero_ps();
    for (size_t i = 0; i < n; i += 16)
        top = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x + i)), top);
    float max = _mm512_reduce_max_ps(top);
    bool usable = max > 1e-30f && max < 1e30f;
    __m512 inverse = _mm512_set1_ps(usable ? 127 / max : 0);
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
        __m512i q = _mm512_maskz_cvtps_epi32(number, _mm512_mul_ps(v, inverse));
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm512_cvtsepi32_epi8(q));
    }
    return usable ? max * (1.0f / 127) : 0;
}

void kv_append_int8_avx512(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                           bool zero_partner)
{
    int8_t kq[HEAD_DIM_MAX], vq[HEAD_DIM_MAX];
    float *scales = kv_scales(sub, head_dim);
    scales[slot] = quantise(k, head_dim, kq);
    scales[KV_SUB + slot] = quantise(v, head_dim, vq);
    if (zero_partner)
        scales[KV_SUB + slot + 1] = 0;
    uint16_t *pairs = (uint16_t *)sub + slot;
    for (size_t d = 0; d < head_dim; d += 2) {
        uint16_t pair;
        __builtin_memcpy(&pair, kq + d, sizeof pair);
        pairs[d / 2 * KV_SUB] = pair;
    }
    int8_t *values = (int8_t *)sub + kv_v_index(head_dim, slot & ~(size_t)1, 0);
    const __mmask32 own = slot % 2 ? 0xaaaaaaaa : 0x55555555;
    for (size_t d = 0; d < head_dim; d += 16) {
        __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(vq + d)));
        _mm256_mask_storeu_epi8(values + 2 * d, own, slot % 2 ? _mm256_slli_epi16(x, 8) : x);
    }
}

/* 32 integers times two vectors of scales. */
INLINE __m512i expand(const int8_t *p, __m512 s0, __m512 s1)
{
    __m512i i0 = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m512i i1 = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_cvtepi32_ps(i1), s1),
                                        _mm512_mul_ps(_mm512_cvtepi32_ps(i0), s0));
}

void kv_expand_avx512(const uint8_t *sub, size_t head_dim, uint16_t *out)
{
    const int8_t *p = (const int8_t *)sub;
    const float *scales = (const float *)(const void *)(sub + 2 * KV_SUB * head_dim);
    const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512 k = _mm512_loadu_ps(scales);
    __m512 s0 = _mm512_permutexvar_ps(first, k);
    __m512 s1 = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(8)), k);
    for (size_t d = 0; d < head_dim; d += 2, p += 32, out += 32)
        _mm512_storeu_si512(out, expand(p, s0, s1));
    const float *v = scales + KV_SUB;
    for (size_t pair = 0; pair < KV_SUB / 2; pair++, v += 2) {
        __m512 s = _mm512_castpd_ps(_mm512_set1_pd(*(const double *)(const void *)v));
        for (size_t d = 0; d < head_dim; d += 16, p += 32, out += 32)
            _mm512_storeu_si512(out, expand(p, s, s));
    }
}
