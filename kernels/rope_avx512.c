/* rope: rotary position embedding of one head. Halves: two vectors of 16 pairs. Neighbours: even
 * and odd numbers of 16 pairs are gathered by permutation and put back. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

void rope_avx512(float *x, const float *table, size_t head_dim, bool neox)
{
    size_t half = head_dim / 2;
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (size_t i = 0; i < half; i += 16) { /* half is a multiple of 8 */
        __mmask16 m = half - i < 16 ? (__mmask16)0xff : (__mmask16)0xffff;
        __mmask16 second = half - i < 16 ? (__mmask16)0 : (__mmask16)0xffff;
        __m512 c = _mm512_maskz_loadu_ps(m, table + i),
               s = _mm512_maskz_loadu_ps(m, table + half + i);
        __m512 a, b;
        if (neox) {
            a = _mm512_maskz_loadu_ps(m, x + i);
            b = _mm512_maskz_loadu_ps(m, x + half + i);
        } else {
            __m512 p = _mm512_loadu_ps(x + 2 * i),
                   q = _mm512_maskz_loadu_ps(second, x + 2 * i + 16);
            a = _mm512_permutex2var_ps(p, even, q);
            b = _mm512_permutex2var_ps(p, odd, q);
        }
        __m512 ra = _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s));
        __m512 rb = _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s));
        if (neox) {
            _mm512_mask_storeu_ps(x + i, m, ra);
            _mm512_mask_storeu_ps(x + half + i, m, rb);
        } else {
            _mm512_storeu_ps(x + 2 * i, _mm512_permutex2var_ps(ra, low, rb));
            _mm512_mask_storeu_ps(x + 2 * i + 16, second, _mm512_permutex2var_ps(ra, high, rb));
        }
    }
}
