/* attention_prefill: flash attention of a chunk of a prompt over its paged keys and values.
 *
 * The rows of a work item are 128 neighbours of (token, query head of one kv head), token by token,
 * of one segment; a warp has 16 of them as operand A of mma.m16n8k16. The block walks the keys in
 * tiles: while one is computed, the next comes from the pool into shared memory by cp.async, whole
 * sub-blocks as they lie, with rows moved apart so that fragment loads meet no bank conflict.
 * A row sees the keys up to its own position: causal at any offset of the chunk.
 *
 * Items are dealt out by counting, the longest (last) tiles of a segment first; the grid is fixed.
 * The order of a row's sums depends on its place in the tile: not strict, see cuda_kernels.h. */
#include "kernels/cuda_attention.cuh"

#define WARPS 8
#define ROWS  (16 * WARPS)

struct prefill_args {
    struct gpu_model m;
    uint32_t layer;
    const uint16_t *q; /* [rows][n_heads][HD], scaled */
    bool skip_single;
    uint16_t *att;
};

/* A tile of keys in shared memory. Strides in 16-bit numbers: a lane's 16 bytes of 8 rows (K) or 4
 * pairs (V) lie in different banks. */
template <int HD> struct tile_shape {
    static constexpr int KEYS = HD <= 128 ? 64 : 32;
    static constexpr int K_LD = HD + (HD % 64 == 0 ? 32 : 0);
    static constexpr int V_LD = 2 * HD + 16;
    static constexpr int K_SIZE = KEYS * K_LD;
    static constexpr int SIZE = K_SIZE + KEYS / 2 * V_LD;
};

/* Starts copying the keys [first, first + KEYS) of a kv head; sub-blocks from `limit` on are not
 * there: zeroes. */
template <int HD>
DEVICE void copy_tile(const struct prefill_args &a, uint16_t *to, const uint32_t *table,
                      uint32_t head, uint32_t first, uint32_t limit)
{
    typedef tile_shape<HD> shape;
    constexpr uint32_t PIECES = HD / 8;              /* of 16 bytes in a key */
    constexpr uint32_t SUB = 2 * GPU_KV_SUB * PIECES; /* in a sub-block: K, then V */
    for (uint32_t i = threadIdx.x; i < shape::KEYS / GPU_KV_SUB * SUB; i += WARPS * 32) {
        uint32_t sub = i / SUB, piece = i % SUB, at = first + sub * GPU_KV_SUB;
        bool there = at < limit;
        const uint8_t *from = there ? kv_sub(a.m, a.layer, table, head, at) + 16 * piece : a.m.kv;
        uint16_t *k = to + (sub * GPU_KV_SUB + piece / PIECES) * shape::K_LD + piece % PIECES * 8;
        uint32_t v_piece = piece - SUB / 2;
        uint16_t *v = to + shape::K_SIZE +
                      (sub * GPU_KV_SUB / 2 + v_piece / (2 * PIECES)) * shape::V_LD +
                      v_piece % (2 * PIECES) * 8;
        copy_async(piece < SUB / 2 ? k : v, from, there ? 16 : 0);
    }
    copy_commit();
}

/* A warp's 16 rows: the lane has rows g and g + 8. */
struct warp_rows {
    uint32_t row[2];      /* of the step; FULL: none */
    uint32_t head[2];     /* query head */
    int32_t position[2];  /* -1: none */
    int32_t least, most;  /* of the warp's positions */
};

/* Operand A of 32 dims: rows g and g + 8. */
template <int HD>
DEVICE void load_q(const struct prefill_args &a, const struct warp_rows &w, int c, uint4 *q)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        q[i] = make_uint4(0, 0, 0, 0);
        if (w.row[i] != FULL)
            q[i] = load16(a.q + ((size_t)w.row[i] * a.m.n_heads + w.head[i]) * HD + 32 * c +
                          8 * (lane_id() % 4));
    }
}

/* s = Q K^T of a tile: s[j][i] is row g + 8 (i / 2), key 8 j + 2 t + i % 2. */
template <int HD>
DEVICE void tile_scores(const struct prefill_args &a, const struct warp_rows &w, uint4 (*q)[2],
                        const uint16_t *tile, float (*s)[4])
{
    typedef tile_shape<HD> shape;
    uint32_t g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int c = 0; c < HD / 32; c++) {
        uint4 x[2];
        if (HD <= 128) {
            x[0] = q[c][0];
            x[1] = q[c][1];
        } else {
            load_q<HD>(a, w, c, x);
        }
#pragma unroll
        for (int j = 0; j < shape::KEYS / 8; j++) {
            uint4 k = load16(tile + (8 * j + g) * shape::K_LD + 32 * c + 8 * t);
            mma16816(s[j], x[0].x, x[1].x, x[0].y, x[1].y, k.x, k.y);
            mma16816(s[j], x[0].z, x[1].z, x[0].w, x[1].w, k.z, k.w);
        }
    }
}

/* o += P V of a tile; o[4 c + j][i]: row g + 8 (i / 2), dim 32 c + 4 (2 t + i % 2) + j. */
template <int HD>
DEVICE void tile_values(const float (*p)[4], const uint16_t *tile, uint32_t first, uint32_t len,
                        float (*o)[4])
{
    typedef tile_shape<HD> shape;
    uint32_t g = lane_id() / 4, t = lane_id() % 4;
    bool whole = first + shape::KEYS <= len;
#pragma unroll
    for (int b = 0; b < shape::KEYS / 16; b++) {
        uint32_t a0 = pack_bf16(p[2 * b][0], p[2 * b][1]);
        uint32_t a1 = pack_bf16(p[2 * b][2], p[2 * b][3]);
        uint32_t a2 = pack_bf16(p[2 * b + 1][0], p[2 * b + 1][1]);
        uint32_t a3 = pack_bf16(p[2 * b + 1][2], p[2 * b + 1][3]);
        const uint16_t *v = tile + shape::K_SIZE + (8 * b + t) * shape::V_LD + 8 * g;
#pragma unroll
        for (int c = 0; c < HD / 32; c++) {
            uint4 x = load16(v + 64 * c), y = load16(v + 64 * c + 4 * shape::V_LD);
            if (!whole) {
                x = mask_pairs(x, first + 16 * b + 2 * t, len);
                y = mask_pairs(y, first + 16 * b + 2 * t + 8, len);
            }
            mma16816(o[4 * c + 0], a0, a1, a2, a3, x.x, y.x);
            mma16816(o[4 * c + 1], a0, a1, a2, a3, x.y, y.y);
            mma16816(o[4 * c + 2], a0, a1, a2, a3, x.z, y.z);
            mma16816(o[4 * c + 3], a0, a1, a2, a3, x.w, y.w);
        }
    }
}

/* The rows of this warp in the tile that begins at row `tile_row` of the segment [first, end). */
DEVICE struct warp_rows rows_of(const struct prefill_args &a, uint32_t first, uint32_t end,
                                uint32_t head, uint32_t tile_row)
{
    struct warp_rows w;
    uint32_t heads = a.m.n_heads / a.m.n_kv_heads;
    w.least = 0x7fffffff;
    w.most = -1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t n = tile_row + 16 * warp_id() + lane_id() / 4 + 8 * i, row = first + n / heads;
        w.head[i] = head * heads + n % heads;
        w.row[i] = row < end ? row : FULL;
        w.position[i] = row < end ? a.m.rows[row].position : -1;
        if (w.position[i] < 0)
            w.row[i] = FULL;
        else
            w.least = w.position[i] < w.least ? w.position[i] : w.least;
        w.most = w.position[i] > w.most ? w.position[i] : w.most;
    }
    for (int o = 16; o > 0; o /= 2) {
        int32_t x = __shfl_xor_sync(FULL, w.least, o), y = __shfl_xor_sync(FULL, w.most, o);
        w.least = x < w.least ? x : w.least;
        w.most = y > w.most ? y : w.most;
    }
    return w;
}

/* Softmax step of a tile that begins at key `first`: scores become weights; o, m and l move to the
 * new maximum. */
template <int HD>
DEVICE void tile_softmax(const struct warp_rows &w, uint32_t first, float (*s)[4], float (*o)[4],
                         float *m, float *l)
{
    constexpr int KEYS = tile_shape<HD>::KEYS;
    if ((int32_t)first + KEYS - 1 > w.least) {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if ((int32_t)(first + 8 * j + 2 * (lane_id() % 4) + i % 2) > w.position[i / 2])
                    s[j][i] = SCORE_NO;
    }
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = m[h];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
        top = max_lanes<4>(top);
        /* A row without keys so far (only rows that are none): any finite number. */
        float base = top == SCORE_NO ? 0 : top;
        scale[h] = ex2(m[h] - base);
        m[h] = top;
        l[h] *= scale[h];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                s[j][i] = ex2(s[j][i] - base);
                l[h] += s[j][i];
            }
    }
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[d][i] *= scale[i / 2];
}

template <int HD>
DEVICE void store_rows(const struct prefill_args &a, const struct warp_rows &w, const float (*o)[4],
                       const float *l)
{
    uint32_t hd = a.m.head_dim, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = sum_lanes<4>(l[i]);
        if (w.row[i] == FULL)
            continue;
        float x = __fdiv_rn(1.0f, sum);
        uint16_t *to = a.att + (size_t)w.row[i] * gpu_pad(a.m.n_heads * hd, 64) + w.head[i] * hd;
#pragma unroll
        for (int c = 0; c < HD / 32; c++) {
            const float(*y)[4] = o + 4 * c;
            if (32 * c + 8 * t < hd)
                store16(to + 32 * c + 8 * t,
                        make_uint4(pack_bf16(y[0][2 * i] * x, y[1][2 * i] * x),
                                   pack_bf16(y[2][2 * i] * x, y[3][2 * i] * x),
                                   pack_bf16(y[0][2 * i + 1] * x, y[1][2 * i + 1] * x),
                                   pack_bf16(y[2][2 * i + 1] * x, y[3][2 * i + 1] * x)));
        }
    }
}

template <int HD>
__global__ void __launch_bounds__(WARPS * 32, 1)
    attention_prefill_kernel(const __grid_constant__ prefill_args a)
{
    typedef tile_shape<HD> shape;
    SHARED_DYNAMIC(uint16_t, tiles); /* [2][shape::SIZE] */
    const struct gpu_model &m = a.m;
    uint32_t heads = m.n_heads / m.n_kv_heads;
    grid_wait();
    grid_launch_next();
    const uint32_t *segment = gpu_step_segment(m.step, &m.caps);
    uint32_t n_segments = m.step->n_segments;

    auto count = [&](uint32_t s) -> uint32_t {
        uint32_t n = segment[s + 1] - segment[s];
        return n == 1 && a.skip_single ? 0 : (n * heads + ROWS - 1) / ROWS * m.n_kv_heads;
    };
    for (uint32_t item = blockIdx.x;; item += gridDim.x) {
        uint32_t rest, s = find_item(n_segments, item, &rest, count);
        if (s == n_segments)
            return;
        uint32_t first = segment[s], end = segment[s + 1], head = rest % m.n_kv_heads;
        uint32_t n_tiles = ((end - first) * heads + ROWS - 1) / ROWS;
        uint32_t tile_row = (n_tiles - 1 - rest / m.n_kv_heads) * ROWS;
        struct warp_rows w = rows_of(a, first, end, head, tile_row);
        /* Keys that some row of the item sees: up to its last token's. */
        uint32_t last = first + (tile_row + ROWS - 1) / heads;
        int32_t limit = m.rows[last < end ? last : end - 1].position + 1;
        const uint32_t *table = m.tables + (size_t)m.rows[first].slot * m.table_stride;

        uint4 q[HD <= 128 ? HD / 32 : 1][2];
        if (HD <= 128)
#pragma unroll
            for (int c = 0; c < HD / 32; c++)
                load_q<HD>(a, w, c, q[HD <= 128 ? c : 0]);
        float o[HD / 8][4] = {}, max[2] = {SCORE_NO, SCORE_NO}, l[2] = {0, 0};
        if (limit > 0)
            copy_tile<HD>(a, tiles, table, head, 0, limit);
        for (int32_t key = 0, i = 0; key < limit; key += shape::KEYS, i ^= 1) {
            if (key + shape::KEYS < limit)
                copy_tile<HD>(a, tiles + (i ^ 1) * shape::SIZE, table, head, key + shape::KEYS,
                              limit);
            else
                copy_commit();
            copy_wait<1>();
            __syncthreads();
            if (key <= w.most) {
                float x[shape::KEYS / 8][4] = {};
                tile_scores<HD>(a, w, q, tiles + i * shape::SIZE, x);
                tile_softmax<HD>(w, key, x, o, max, l);
                tile_values<HD>(x, tiles + i * shape::SIZE, key, limit, o);
            }
            __syncthreads(); /* before the tile is overwritten */
        }
        store_rows<HD>(a, w, o, l);
    }
}

template <int HD> static int launch(struct gpu_launch l, const struct prefill_args *args)
{
    struct prefill_args a = *args;
    return LAUNCH(&l, attention_prefill_kernel<HD>, dim3(l.n_sms), dim3(WARPS * 32),
                  2 * tile_shape<HD>::SIZE * sizeof(uint16_t), a);
}

int cuda_attention_prefill(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                           uint32_t layer, const uint16_t *q, bool skip_single, uint16_t *att)
{
    (void)bucket; /* the work is counted on the device */
    ASSERT(m->head_dim % 16 == 0 && m->head_dim <= 256 && m->kv_block_size % GPU_KV_SUB == 0);
    ASSERT(l.n_sms > 0 && m->n_heads % m->n_kv_heads == 0);
    struct prefill_args a = {*m, layer, q, skip_single, att};
    WITH_HEAD_DIM(m->head_dim, return launch<HD>(l, &a));
}

template <int HD> static int allow_shared(void)
{
    return ALLOW_SHARED(attention_prefill_kernel<HD>, 2 * tile_shape<HD>::SIZE * sizeof(uint16_t));
}

int cuda_attention_prefill_init(void)
{
    int rc = allow_shared<32>();
    rc = rc ? rc : allow_shared<64>();
    rc = rc ? rc : allow_shared<96>();
    rc = rc ? rc : allow_shared<128>();
    return rc ? rc : allow_shared<256>();
}
