/* attention_decode: one query row at a time over its paged keys and values, split over blocks.
 *
 * A row's keys are cut into chunks of 256 positions, and the chunks into at most 32 groups of
 * neighbouring ones; how, depends on the row's length alone. A work item is (row, kv head, group).
 * A fixed number of blocks deals the items out by counting: the grid never depends on the lengths.
 *
 * In an item the keys and then the values are the 16-row operand A of mma.m16n8k16, straight from
 * the pool, 16 bytes a lane; the query heads of the kv head, 8 at a time, are B. Warp w takes the 32 positions
 * 32 w .. 32 w + 31 of each chunk, the block agrees on the maximum of the chunk, and at the group's
 * end the warps' sums are added in a tree of fixed order. Groups are folded in ascending order: by
 * the block that finishes a row last (split), or by the one block that has them all.
 *
 * Fused (qkv given): the item prepares its query heads (norm, RoPE) itself, and the last group's
 * item appends the row's own key and value before it reads them. */
#include "kernels/cuda_attention.cuh"

#define WARPS     8
#define CHUNK     GPU_ATTENTION_CHUNK
#define GROUP_MAX 16 /* query heads per kv head */

struct attention_args {
    struct gpu_model m;
    struct gpu_attention a;
    uint32_t rows;
    float scale;
};

/* How the keys 0..len-1 are cut. */
struct cut {
    uint32_t len, chunks, per_group, groups;
};
DEVICE struct cut cut_of(int32_t position)
{
    struct cut c = {(uint32_t)(position + 1), 0, 0, 0};
    c.chunks = (c.len + CHUNK - 1) / CHUNK;
    c.per_group = (c.chunks + GPU_ATTENTION_SPLITS - 1) / GPU_ATTENTION_SPLITS;
    c.groups = c.per_group ? (c.chunks + c.per_group - 1) / c.per_group : 0;
    return c;
}

/* Blocks that fit a multiprocessor beside each other without spilling. */
template <int HD, int H> constexpr int blocks_per_sm = HD * H <= (H == 1 ? 128 : 64) ? 2 : 1;

template <int HD> struct attention_shared {
    uint16_t q[GROUP_MAX][HD + 8]; /* rows 16 bytes apart in the banks */
    float max[2][WARPS][GROUP_MAX];
    float sum[WARPS][GROUP_MAX];
    float m[GROUP_MAX], l[GROUP_MAX];         /* of the group */
    float run_m[GROUP_MAX], run_l[GROUP_MAX]; /* of the row so far, when one block has it all */
    uint32_t last;
};

/* Tiles of the two products (H tiles of 8 heads; g = lane / 4, t = lane % 4). The keys and values
 * are the 16-row operand, so that few heads do not leave half of it empty.
 *
 *   scores  = K Q^T  s[h][i]: position g + 8 (i / 2), head 8 h + 2 t + i % 2
 *   outputs = V^T P  o[h][2 c + j][i]: dim 32 c + 4 g + 2 j + i / 2, head as above */

/* Scores of 16 keys against the query heads in shared memory. */
template <int HD, int H>
DEVICE void scores16(const uint16_t (*q)[HD + 8], const uint16_t *sub, float (*s)[4])
{
    uint32_t g = lane_id() / 4, t = lane_id() % 4;
    constexpr int BATCH = HD == 96 ? 1 : HD >= 128 ? HD / 64 : HD / 32; /* as registers allow */
#pragma unroll 1
    for (int c0 = 0; c0 < HD / 32; c0 += BATCH) {
        const uint16_t *at = sub + g * HD + 32 * c0 + 8 * t;
        uint4 k[BATCH][2];
#pragma unroll
        for (int c = 0; c < BATCH; c++) {
            k[c][0] = load16(at + 32 * c);
            k[c][1] = load16(at + 32 * c + 8 * HD);
        }
#pragma unroll
        for (int c = 0; c < BATCH; c++)
#pragma unroll
            for (int h = 0; h < H; h++) {
                uint4 x = load16(&q[g + 8 * h][32 * (c0 + c) + 8 * t]);
                mma16816(s[h], k[c][0].x, k[c][1].x, k[c][0].y, k[c][1].y, x.x, x.y);
                mma16816(s[h], k[c][0].z, k[c][1].z, k[c][0].w, k[c][1].w, x.z, x.w);
            }
    }
}

/* Asks for the keys and values of 16 positions, a line a lane: they are on their way while the block
 * is busy with what comes before. */
template <int HD> DEVICE void prefetch16(const uint16_t *sub)
{
#pragma unroll
    for (int i = 0; i < 2 * GPU_KV_SUB * HD; i += 32 * 64)
        if (i + lane_id() * 64 < 2 * GPU_KV_SUB * HD)
            prefetch_l2(sub + i + lane_id() * 64);
}

/* o += V^T p over the 16 positions from `position` on; p: their weights, laid out as scores. */
template <int HD, int H>
DEVICE void values16(const float (*p)[4], const uint16_t *sub, uint32_t position, uint32_t len,
                     float (*o)[HD / 16][4])
{
    uint32_t g = lane_id() / 4, t = lane_id() % 4;
    const uint16_t *v = sub + GPU_KV_SUB * HD + t * 2 * HD + 8 * g;
    bool whole = position + GPU_KV_SUB <= len;
    uint32_t w[H][2];
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            w[h][i] = transpose8x8(pack_bf16(p[h][2 * i], p[h][2 * i + 1]));
#pragma unroll
    for (int c = 0; c < HD / 32; c++) {
        uint4 a = load16(v + 64 * c), b = load16(v + 64 * c + 8 * HD); /* pairs t and t + 4 */
        if (!whole) {
            a = mask_pairs(a, position + 2 * t, len);
            b = mask_pairs(b, position + 2 * t + 8, len);
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            mma16816(o[h][2 * c], a.x, a.y, b.x, b.y, w[h][0], w[h][1]);
            mma16816(o[h][2 * c + 1], a.z, a.w, b.z, b.w, w[h][0], w[h][1]);
        }
    }
}

/* Adds the warps' outputs: warps 4-7 into 0-3, 2-3 into 0-1, 1 into 0; the sum goes to
 * tree[head][HD]. Ends with a barrier. */
template <int HD, int H>
DEVICE void add_warps(float (*o)[HD / 16][4], float *tree, uint32_t heads)
{
    uint32_t g = lane_id() / 4, t = lane_id() % 4, warp = warp_id();
    for (uint32_t n = WARPS / 2; n > 0; n /= 2) {
        float *at = tree + (size_t)(warp % n) * heads * HD;
        bool gives = warp >= n && warp < 2 * n, takes = warp < n;
        for (int part = 0; part < 2; part++) {
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int d = 0; d < HD / 16; d++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        uint32_t row = 8 * h + 2 * t + i % 2;
                        float *x = at + row * HD + d / 2 * 32 + 4 * g + d % 2 * 2 + i / 2;
                        if (row >= heads)
                            continue;
                        if (part == 0 && gives)
                            *x = o[h][d][i];
                        if (part == 1 && takes) {
                            o[h][d][i] = __fadd_rn(o[h][d][i], *x);
                            if (n == 1)
                                *x = o[h][d][i];
                        }
                    }
            __syncthreads();
        }
    }
}

/* The chunks [first, end) of a row, by the whole block: numerators to tree[head][HD], maxima and
 * sums to sm->m, sm->l. Ends with a barrier. */
template <int HD, int H>
DEVICE void attend(const struct attention_args &a, struct attention_shared<HD> *sm, float *tree,
                   const uint32_t *table, uint32_t head, uint32_t len, uint32_t first, uint32_t end,
                   uint32_t heads)
{
    uint32_t g = lane_id() / 4, t = lane_id() % 4, warp = warp_id();
    float o[H][HD / 16][4] = {}, m[H][2], l[H][2] = {};
#pragma unroll
    for (int h = 0; h < H; h++)
        m[h][0] = m[h][1] = SCORE_NO;
    for (uint32_t chunk = first; chunk < end; chunk++) {
        uint32_t at = chunk * CHUNK + warp * 32;
        const uint16_t *sub[2] = {NULL, NULL};
        float s[2][H][4] = {};
#pragma unroll
        for (int b = 0; b < 2; b++)
            if (at + 16 * b < len) {
                sub[b] = (const uint16_t *)kv_sub(a.m, a.a.layer, table, head, at + 16 * b);
                prefetch16<HD>(sub[b]);
            }
#pragma unroll
        for (int b = 0; b < 2; b++)
            if (sub[b])
                scores16<HD, H>(sm->q, sub[b], s[b]);
        float(*shared_max)[GROUP_MAX] = sm->max[chunk & 1];
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float top = SCORE_NO;
#pragma unroll
                for (int b = 0; b < 2; b++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        float *x = &s[b][h][2 * k + i];
                        if (at + 16 * b + 8 * k + g >= len)
                            *x = SCORE_NO;
                        top = fmaxf(top, *x);
                    }
                top = max_rows(top);
                if (g == 0)
                    shared_max[warp][8 * h + 2 * t + i] = top;
            }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float next = m[h][i];
                for (int w = 0; w < WARPS; w++)
                    next = fmaxf(next, shared_max[w][8 * h + 2 * t + i]);
                float scale = ex2(__fsub_rn(m[h][i], next));
                m[h][i] = next;
                l[h][i] = __fmul_rn(l[h][i], scale);
#pragma unroll
                for (int d = 0; d < HD / 16; d++) {
                    o[h][d][i] = __fmul_rn(o[h][d][i], scale);
                    o[h][d][i + 2] = __fmul_rn(o[h][d][i + 2], scale);
                }
#pragma unroll
                for (int b = 0; b < 2; b++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        float *x = &s[b][h][2 * k + i];
                        *x = ex2(__fsub_rn(*x, next));
                        l[h][i] = __fadd_rn(l[h][i], *x);
                    }
            }
#pragma unroll
        for (int b = 0; b < 2; b++)
            if (sub[b])
                values16<HD, H>(s[b], sub[b], at + 16 * b, len, o);
    }
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            l[h][i] = sum_rows(l[h][i]);
            if (g == 0)
                sm->sum[warp][8 * h + 2 * t + i] = l[h][i];
            if (g == 0 && warp == 0)
                sm->m[8 * h + 2 * t + i] = m[h][i];
        }
    add_warps<HD, H>(o, tree, heads);
    if (threadIdx.x < heads) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum = __fadd_rn(sum, sm->sum[w][threadIdx.x]);
        sm->l[threadIdx.x] = sum;
    }
    __syncthreads();
}

/* The query heads of an item into shared memory (rows that are no heads: zeroes); when the item has
 * the row's own position, also its k and v into the pool. Ends with a barrier. */
template <int HD>
DEVICE void prepare(const struct attention_args &a, struct attention_shared<HD> *sm, uint32_t r,
                    const struct gpu_row &row, uint32_t head, uint32_t heads, bool append)
{
    const struct gpu_model &m = a.m;
    uint32_t hd = m.head_dim, warp = warp_id();
    struct head_args h = {hd, m.rms_eps, m.rope_neox, m.rope};
    const float *x = a.a.qkv + (size_t)r * gpu_pad((m.n_heads + 2 * m.n_kv_heads) * hd, 16);
    for (uint32_t i = warp; i < GROUP_MAX; i += WARPS) {
        if (i >= heads) {
            for (uint32_t d = lane_id(); d < HD; d += 32)
                sm->q[i][d] = 0;
        } else if (a.a.qkv) {
            head_prepare<HD>(h, x + (size_t)(head * heads + i) * hd, NULL, a.a.q_norm, row.position,
                             a.scale, sm->q[i]);
        } else {
            const uint16_t *q = a.a.q + ((size_t)r * m.n_heads + head * heads + i) * HD;
            for (uint32_t d = lane_id(); d < HD; d += 32)
                sm->q[i][d] = q[d];
        }
    }
    if (append && a.a.qkv && warp == WARPS - 1) {
        uint8_t *sub = kv_sub(m, a.a.layer, m.tables + (size_t)row.slot * m.table_stride, head,
                              row.position);
        head_prepare<HD>(h, x + (size_t)(m.n_heads + head) * hd, NULL, a.a.k_norm, row.position, 1,
                         (uint16_t *)sub + row.position % GPU_KV_SUB * HD);
        append_v<HD>(h, sub, row.position,
                     x + (size_t)(m.n_heads + m.n_kv_heads + head) * hd, NULL);
    }
    __syncthreads(); /* the heads and the row's own key and value are there */
}

/* Output i = head of the group * HD + dim of a row, as numerator and sum. */
template <int HD>
DEVICE void store_output(const struct attention_args &a, uint32_t r, uint32_t head, uint32_t i,
                         float o, float l)
{
    uint32_t hd = a.m.head_dim, heads = a.m.n_heads / a.m.n_kv_heads;
    if (i % HD < hd)
        a.a.att[(size_t)r * gpu_pad(a.m.n_heads * hd, 64) + (head * heads + i / HD) * hd + i % HD] =
            to_bf16(__fdiv_rn(o, l));
}

/* One block has all groups of the row: folds this one into the row's state `run` and, after the
 * last one, stores the outputs. Ends with a barrier. */
template <int HD>
DEVICE void fold_group(const struct attention_args &a, struct attention_shared<HD> *sm,
                       const float *tree, float *run, uint32_t r, uint32_t head, uint32_t heads,
                       bool first, bool last)
{
    for (uint32_t i = threadIdx.x; i < heads * HD; i += WARPS * 32) {
        struct partial x = {sm->m[i / HD], sm->l[i / HD], tree[i]};
        if (!first)
            x = fold({sm->run_m[i / HD], sm->run_l[i / HD], run[i]}, x);
        run[i] = x.o;
        if (last)
            store_output<HD>(a, r, head, i, x.o, x.l);
    }
    __syncthreads(); /* before run_m and run_l change */
    if (threadIdx.x < heads) {
        struct partial x = {sm->m[threadIdx.x], sm->l[threadIdx.x], 0};
        if (!first)
            x = fold({sm->run_m[threadIdx.x], sm->run_l[threadIdx.x], 0}, x);
        sm->run_m[threadIdx.x] = x.m;
        sm->run_l[threadIdx.x] = x.l;
    }
    __syncthreads();
}

/* The groups of a row are in several blocks: leaves this one's result in the scratch memory, and
 * the block that comes last folds them all, in order. */
template <int HD>
DEVICE void merge_groups(const struct attention_args &a, struct attention_shared<HD> *sm,
                         const float *tree, uint32_t r, uint32_t head, uint32_t heads,
                         uint32_t group, uint32_t groups)
{
    uint32_t outputs = heads * HD, size = heads * (HD + 2), row = r * a.m.n_kv_heads + head;
    float *parts = a.a.scratch + (size_t)row * GPU_ATTENTION_SPLITS * size;
    float *mine = parts + (size_t)group * size;
    for (uint32_t i = threadIdx.x; i < outputs; i += WARPS * 32)
        mine[i] = tree[i];
    if (threadIdx.x < heads) {
        mine[outputs + threadIdx.x] = sm->m[threadIdx.x];
        mine[outputs + heads + threadIdx.x] = sm->l[threadIdx.x];
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        sm->last = atomicAdd(&a.a.counters[row], 1u) == groups - 1;
        if (sm->last)
            a.a.counters[row] = 0;
    }
    __syncthreads();
    if (!sm->last)
        return;
    __threadfence();
    for (uint32_t i = threadIdx.x; i < outputs; i += WARPS * 32) {
        struct partial x = {0, 0, 0};
        for (uint32_t s = 0; s < groups; s++) {
            const float *p = parts + (size_t)s * size;
            struct partial y = {load_l2(p + outputs + i / HD),
                                load_l2(p + outputs + heads + i / HD), load_l2(p + i)};
            x = s ? fold(x, y) : y;
        }
        store_output<HD>(a, r, head, i, x.o, x.l);
    }
}

template <int HD, int H, bool SPLIT>
__global__ void __launch_bounds__(WARPS * 32, (blocks_per_sm<HD, H>))
    attention_decode_kernel(const __grid_constant__ attention_args a)
{
    SHARED(struct attention_shared<HD>, sm);
    SHARED_DYNAMIC(float, tree); /* [WARPS / 2][heads][HD]; not SPLIT: + [heads][HD] of the row */
    const struct gpu_model &m = a.m;
    uint32_t heads = m.n_heads / m.n_kv_heads;
    grid_wait();
    grid_launch_next();

    auto count = [&](uint32_t r) -> uint32_t {
        struct gpu_row row = m.rows[r];
        if (row.position < 0 || (a.a.single_only && !(row.flags & GPU_ROW_SINGLE)))
            return 0;
        return m.n_kv_heads * (SPLIT ? cut_of(row.position).groups : 1);
    };
    for (uint32_t item = blockIdx.x;; item += gridDim.x) {
        uint32_t rest, r = find_item(a.rows, item, &rest, count);
        if (r == a.rows)
            return;
        struct gpu_row row = m.rows[r];
        struct cut c = cut_of(row.position);
        uint32_t head = rest % m.n_kv_heads, group = rest / m.n_kv_heads;
        const uint32_t *table = m.tables + (size_t)row.slot * m.table_stride;
        uint32_t end = SPLIT ? group + 1 : c.groups;
        prepare<HD>(a, &sm, r, row, head, heads, end == c.groups);
        for (uint32_t s = group; s < end; s++) {
            uint32_t first = s * c.per_group, to = first + c.per_group;
            attend<HD, H>(a, &sm, tree, table, head, c.len, first, to < c.chunks ? to : c.chunks,
                          heads);
            if (!SPLIT)
                fold_group<HD>(a, &sm, tree, tree + (size_t)WARPS / 2 * heads * HD, r, head, heads,
                               s == 0, s + 1 == end);
            else if (c.groups > 1)
                merge_groups<HD>(a, &sm, tree, r, head, heads, group, c.groups);
            else
                for (uint32_t i = threadIdx.x; i < heads * HD; i += WARPS * 32)
                    store_output<HD>(a, r, head, i, tree[i], sm.l[i / HD]);
        }
        /* The next item's prepare() has the barrier before the shared results change. */
    }
}

template <int HD> static size_t tree_bytes(uint32_t heads, bool split)
{
    return (size_t)(WARPS / 2 + !split) * heads * HD * sizeof(float);
}

template <int HD, int H>
static int launch(struct gpu_launch l, const struct attention_args *args, uint32_t heads)
{
    struct attention_args a = *args;
    uint64_t items = (uint64_t)a.rows * a.m.n_kv_heads * (a.a.split ? GPU_ATTENTION_SPLITS : 1);
    uint64_t most = (uint64_t)l.n_sms * blocks_per_sm<HD, H>;
    dim3 grid((uint32_t)(items < most ? items : most)), block(WARPS * 32);
    if (a.a.split)
        return LAUNCH(&l, (attention_decode_kernel<HD, H, true>), grid, block,
                      tree_bytes<HD>(heads, true), a);
    return LAUNCH(&l, (attention_decode_kernel<HD, H, false>), grid, block,
                  tree_bytes<HD>(heads, false), a);
}

int cuda_attention_decode(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                          const struct gpu_attention *a)
{
    uint32_t heads = m->n_heads / m->n_kv_heads;
    ASSERT(heads >= 1 && heads <= GROUP_MAX && heads * m->n_kv_heads == m->n_heads);
    ASSERT(m->head_dim % 16 == 0 && m->head_dim <= 256 && m->kv_block_size % GPU_KV_SUB == 0);
    ASSERT(l.n_sms > 0 && (!a->split || (a->scratch && a->counters)));
    struct attention_args args = {*m, *a, bucket, LOG2E / sqrtf((float)m->head_dim)};
    if (heads <= 8)
        WITH_HEAD_DIM(m->head_dim, return launch<HD, 1>(l, &args, heads));
    WITH_HEAD_DIM(m->head_dim, return launch<HD, 2>(l, &args, heads));
}

template <int HD, int H> static int allow_shared(void)
{
    int rc = ALLOW_SHARED((attention_decode_kernel<HD, H, true>), tree_bytes<HD>(8 * H, true));
    return rc ? rc
              : ALLOW_SHARED((attention_decode_kernel<HD, H, false>), tree_bytes<HD>(8 * H, false));
}

int cuda_attention_decode_init(void)
{
    int rc = 0;
    rc = rc ? rc : allow_shared<32, 1>();
    rc = rc ? rc : allow_shared<32, 2>();
    rc = rc ? rc : allow_shared<64, 1>();
    rc = rc ? rc : allow_shared<64, 2>();
    rc = rc ? rc : allow_shared<96, 1>();
    rc = rc ? rc : allow_shared<96, 2>();
    rc = rc ? rc : allow_shared<128, 1>();
    rc = rc ? rc : allow_shared<128, 2>();
    rc = rc ? rc : allow_shared<256, 1>();
    return rc ? rc : allow_shared<256, 2>();
}
