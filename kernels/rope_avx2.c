/* rope: rotary position embedding of one head, eight pairs at a time. Neighbours: their cosines and
 * sines are doubled, and (a, b) turns with (b, a) and an alternating sign. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx2.h"

/* Four angles to eight lanes: each twice. */
INLINE __m256 twice(const float *p)
{
    __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(p));
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}

void rope_avx2(float *x, const float *table, size_t head_dim, bool neox)
{
    size_t half = head_dim / 2;
    if (neox) {
        for (size_t i = 0; i < half; i += 8) {
            __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
            __m256 c = _mm256_loadu_ps(table + i), s = _mm256_loadu_ps(table + half + i);
            _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
        }
        return;
    }
    for (size_t i = 0; i < half; i += 4) {
        __m256 v = _mm256_loadu_ps(x + 2 * i), swapped = _mm256_permute_ps(v, 0xb1);
        __m256 c = twice(table + i), s = twice(table + half + i);
        /* even lanes: a c - b s; odd lanes: b c + a s */
        __m256 r = _mm256_addsub_ps(_mm256_mul_ps(v, c), _mm256_mul_ps(swapped, s));
        _mm256_storeu_ps(x + 2 * i, r);
    }
}
