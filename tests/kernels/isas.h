/* isas: the instruction sets of the kernel tests. A set that this machine lacks is named once. */
#ifndef BATON_TESTS_KERNELS_ISAS_H
#define BATON_TESTS_KERNELS_ISAS_H

#include <stdio.h>

#include "kernels/cpu.h"

#define N_ISAS 4
static const char *const isas[N_ISAS] = {"c", "avx2", "avx512", "amx"};

static inline const struct kernels *isa_kernels(int i)
{
    const struct kernels *k = kernels_select(isas[i]);
    if (!k)
        printf("skipped: this machine has no %s\n", isas[i]);
    return k;
}

#endif
