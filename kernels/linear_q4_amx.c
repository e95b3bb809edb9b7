/* linear_q4: Q4 weights (d q + m) x int8 activations on TDPBSSD. */
#define BLOCK_BYTES Q4_BLOCK_BYTES
#define SCALES_AT   (PANEL * Q_BLOCK / 2)
#define MINIMUM
#include "kernels/linear_int8_amx.h"

/* A vector of nibbles holds a quad of k and the one behind it. */
INLINE void expand(const uint8_t *from, int8_t *to)
{
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int i = 0; i < BLOCK_SIGNED / 2; i += 64) {
        __m512i w = _mm512_load_si512(from + i);
        int8_t *low = to + i / 128 * 256 + i % 128;
        _mm512_store_si512(low, _mm512_and_si512(w, mask));
        _mm512_store_si512(low + 128, _mm512_and_si512(_mm512_srli_epi16(w, 4), mask));
    }
}

void linear_q4_amx(const struct linear_args *a)
{
    linear_passes(a, linear_q4_avx512);
}
