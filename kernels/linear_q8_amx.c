/* linear_q8: Q8 weights x int8 activations on TDPBSSD. The stored bytes are the integers + 128,
 * which VPDPBUSD wants; flipping the top bit takes that off again. */
#define BLOCK_BYTES Q8_BLOCK_BYTES
#define SCALES_AT   (PANEL * Q_BLOCK)
#include "kernels/linear_int8_amx.h"

INLINE void expand(const uint8_t *from, int8_t *to)
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
#pragma GCC unroll 16
    for (int i = 0; i < BLOCK_SIGNED; i += 64)
        _mm512_store_si512(to + i, _mm512_xor_si512(top, _mm512_load_si512(from + i)));
}

void linear_q8_amx(const struct linear_args *a)
{
    linear_passes(a, linear_q8_avx512);
}
