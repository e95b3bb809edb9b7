/* step: the first node of every graph: patches, which rows live, and the embedding.
 *
 * One block per row of the bucket. The block tables and slots are patched by block 0; a row's block
 * does not wait for it: it looks for its slot among the patches before it believes the slot. Tables
 * are read by later nodes only. */
#include "kernels/cuda_device.cuh"

#define THREADS 256

struct step_begin_args {
    struct gpu_model m;
    const uint16_t *w;
    const float *gain;
    float *x;
    uint16_t *xg;
    float *ssq;
};

DEVICE void apply_patches(const struct gpu_model &m)
{
    const struct gpu_patch *p = gpu_step_patches(m.step, &m.caps);
    for (uint32_t i = threadIdx.x; i < m.step->n_patches; i += THREADS)
        m.tables[(size_t)p[i].slot * m.table_stride + p[i].index] = p[i].block;
    const struct gpu_slot_patch *s = gpu_step_slots(m.step, &m.caps);
    for (uint32_t i = threadIdx.x; i < m.step->n_slot_patches; i += THREADS)
        m.slots[s[i].slot] = s[i].to;
}

/* The row with its token; position -1 when there is nothing to compute. By thread 0. */
DEVICE struct gpu_row resolve(const struct gpu_model &m, uint32_t i)
{
    struct gpu_row r = {0, -1, 0, 0};
    if (i >= m.step->n_rows)
        return r;
    r = gpu_step_rows(m.step)[i];
    if (r.token != GPU_TOKEN_OF_SLOT && !(r.flags & GPU_ROW_IF_ALIVE))
        return r;
    struct gpu_slot slot = m.slots[r.slot];
    const struct gpu_slot_patch *p = gpu_step_slots(m.step, &m.caps);
    for (uint32_t j = 0; j < m.step->n_slot_patches; j++)
        if (p[j].slot == r.slot)
            slot = p[j].to;
    if (r.token == GPU_TOKEN_OF_SLOT)
        r.token = slot.token;
    if ((r.flags & GPU_ROW_IF_ALIVE) && !slot.alive)
        r.position = -1;
    return r;
}

__global__ void __launch_bounds__(THREADS)
    step_begin_kernel(const __grid_constant__ step_begin_args a)
{
    SHARED(struct gpu_row, row);
    grid_wait();
    grid_launch_next();
    if (blockIdx.x == 0)
        apply_patches(a.m);
    if (threadIdx.x == 0) {
        row = resolve(a.m, blockIdx.x);
        /* A token that is none would address memory: its row is padding. */
        if (row.token < 0 || (uint32_t)row.token >= a.m.vocab)
            row.position = -1;
        a.m.rows[blockIdx.x] = row;
    }
    __syncthreads();
    if (row.position < 0)
        return;
    uint32_t ld = gpu_pad(a.m.hidden, 64);
    const uint16_t *w = a.w + (size_t)row.token * ld;
    size_t at = (size_t)blockIdx.x * ld;
    for (uint32_t i = threadIdx.x; i < ld; i += THREADS) {
        float x = from_bf16(w[i]), s = ssq16(x);
        a.x[at + i] = x;
        a.xg[at + i] = to_bf16(__fmul_rn(x, a.gain[i]));
        if (i % 16 == 0)
            a.ssq[(at + i) / 16] = s;
    }
}

int cuda_step_begin(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                    const uint16_t *w, const float *gain, float *x, uint16_t *xg, float *ssq)
{
    ASSERT(bucket > 0 && bucket <= m->caps.max_rows);
    struct step_begin_args a = {*m, w, gain, x, xg, ssq};
    return LAUNCH(&l, step_begin_kernel, dim3(bucket), dim3(THREADS), 0, a);
}
