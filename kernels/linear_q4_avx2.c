/* linear_q4: Q4 weights (d q + m) x int8 activations on VPMADDUBSW. The nibbles are unsigned and
 * small: a block adds up in 16 bits (linear_avx2.h). Micro tile: 4 rows x 16 columns. */
#define MR    4
#define CHUNK 768 /* 15 KB */
#include "kernels/linear_avx2.h"

/* acc += q times x. By hand: the compiler would move loads up and run out of registers. */
INLINE void quad_dot(__m256i *acc, __m256i q, __m256i x)
{
    __m256i t;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(*acc), "=&x"(t) : "x"(q), "x"(x));
}

/* Four k of all rows; w: the low or high nibbles of 32 nv bytes. */
INLINE void quad_step(const int mr, const int nv, const bool high, const int8_t *x, size_t k_row,
                      const uint8_t *w, __m256i (*acc)[4])
{
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i q[4];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        q[v] = load_256(w + 32 * v);
        q[v] = _mm256_and_si256(high ? _mm256_srli_epi16(q[v], 4) : q[v], mask);
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
        __m256i xq = broadcast_quad(x + (size_t)r * k_row);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            quad_dot(&acc[r][v], q[v], xq);
    }
}

INLINE size_t panel_bytes(size_t k)
{
    return k / Q_BLOCK * Q4_BLOCK_BYTES;
}

INLINE void micro(const int mr, const int nv, const struct linear_args *a, uint32_t row,
                  uint32_t column, uint32_t k0, uint32_t n, float (*sum)[PANEL],
                  const uint8_t *next)
{
    const size_t blocks = a->k / Q_BLOCK, first = row * blocks + k0 / Q_BLOCK;
    const int8_t *x = a->a.q + (size_t)row * a->k + k0;
    const float *d = a->a.d + first, *ds = a->a.ds + first;
    const uint8_t *w = a->w + panel_bytes(k0);
    for (uint32_t b = 0; b < n / Q_BLOCK; b++, w += Q4_BLOCK_BYTES, x += Q_BLOCK) {
        __m256i acc[MR][4];
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[r][v] = _mm256_setzero_si256();
        fetch_block(nv, w, Q4_BLOCK_BYTES, &next);
#pragma GCC unroll 4
        for (int k = 0; k < Q_BLOCK; k += 8) {
            const uint8_t *at = w + PANEL * k / 2 + 4 * column;
            quad_step(mr, nv, false, x + k, a->k, at, acc);
            READ_AGAIN();
            quad_step(mr, nv, true, x + k + 4, a->k, at, acc);
        }
        const uint8_t *scales = w + PANEL * Q_BLOCK / 2 + 2 * column;
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            __m256 dw = halves_256(scales + 16 * v), mw = halves_256(scales + 2 * PANEL + 16 * v);
#pragma GCC unroll 4
            for (int r = 0; r < mr; r++) {
                float *to = sum[r] + column + 8 * v;
                __m256 dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(acc[r][v], _mm256_set1_epi16(1)));
                __m256 both = _mm256_mul_ps(dw, _mm256_broadcast_ss(d + r * blocks + b));
                __m256 s = _mm256_fmadd_ps(dot, both, _mm256_load_ps(to));
                s = _mm256_fmadd_ps(mw, _mm256_broadcast_ss(ds + r * blocks + b), s);
                _mm256_store_ps(to, s);
            }
        }
    }
}

void linear_q4_avx2(const struct linear_args *a)
{
    linear_frame(a);
}
