/* tiles_amx: see tiles_amx.h. */
#include "kernels/tiles_amx.h"

#include <stdbool.h>

/* The operand of LDTILECFG (Intel SDM, volume 2). */
struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

_Thread_local uint32_t tiles_now;

void tiles_set(enum tiles_layout layout, uint32_t rows)
{
    struct config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        bool half = layout == TILES_HALF || (layout == TILES_BOTH && i % 2);
        c.rows[i] = (uint8_t)rows;
        c.row_bytes[i] = TILE_BYTES;
        if (i >= 6)
            c.rows[i] = half ? 8 : 16;
        else if (i >= 4 && half)
            c.row_bytes[i] = TILE_BYTES / 2;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
    tiles_now = (uint32_t)layout << 8 | rows;
}
