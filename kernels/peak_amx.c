/* peak: register-only loops for AMX: four tiles of C, as the kernels have. */
#include "kernels/peak.h"

#include "kernels/tiles_amx.h"

/* Tiles are zero: the products take the same time whatever they multiply. */
#define PEAK_LOOP(product)                                                                         \
    tiles_shape(TILES_FULL, TILE_ROWS);                                                            \
    TILE_ZERO(0);                                                                                  \
    TILE_ZERO(1);                                                                                  \
    TILE_ZERO(2);                                                                                  \
    TILE_ZERO(3);                                                                                  \
    TILE_ZERO(4);                                                                                  \
    TILE_ZERO(5);                                                                                  \
    TILE_ZERO(6);                                                                                  \
    TILE_ZERO(7);                                                                                  \
    for (size_t r = 0; r < n; r++) {                                                               \
        product(0, 4, 6);                                                                          \
        product(1, 4, 7);                                                                          \
        product(2, 5, 6);                                                                          \
        product(3, 5, 7);                                                                          \
    }

double peak_bf16_amx(size_t n)
{
    PEAK_LOOP(TILE_BF16)
    return (double)n * 4 * 16 * 16 * 32 * 2;
}

double peak_int8_amx(size_t n)
{
    PEAK_LOOP(TILE_SIGNED)
    return (double)n * 4 * 16 * 16 * 64 * 2;
}
