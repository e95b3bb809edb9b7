/* probes: what test_emu.c runs on the emulation; see probes.cu. */
#ifndef BATON_TESTS_CUDA_PROBES_H
#define BATON_TESTS_CUDA_PROBES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum probe {
    PROBE_MMA,
    PROBE_WARP,
    PROBE_EXCHANGE,
    PROBE_RACE,
    PROBE_COPY,
    PROBE_COPY_LOST,
    PROBE_BARRIER_MISSED,
    PROBE_BARRIERS_MIXED,
    PROBE_WARP_MIXED,
    PROBE_LANES_GONE,
    PROBE_MISALIGNED,
    PROBE_ORDER,
    PROBE_FRESH,
    PROBE_OUT_OF_SHARED,
    PROBE_OUT_OF_DYNAMIC,
    PROBE_OUT_OF_GLOBAL,
    PROBE_WAIT_FORGOTTEN,
    PROBE_EARLY_READ
};
/* blocks x 2 blocks when there is more than one. */
int probe(enum probe kind, uint32_t blocks, uint32_t threads, const uint16_t *in, uint32_t *out);

#ifdef __cplusplus
}
#endif

#endif
