/* linear: y = W x for few rows of x (tokens), with what precedes and follows fused: the split
 * RMSNorm, bias, residual, SwiGLU, the head's choice of rows.
 *
 * Decode reads every weight once for a handful of tokens, so the kernel is built around streaming
 * W: mma.m16n8k16 with 16 rows of W as operand A and 8 tokens as operand B. Both operands come
 * straight from global memory into fragments, 16 bytes a lane: the 32 columns of a step are dealt
 * to the four lanes of a row as 8 neighbours each, for W and x alike; which k of the two mma they
 * become does not matter to the sum. No shared memory until the end.
 *
 * A block owns 16 MT rows of W and 8 NT tokens. Its 8 warps share K: warp w takes the 64-wide
 * (128-byte) units w, w + 8, ... and the partial sums are added in the order of the warps. So an
 * output's order of summation depends on K alone: not on the number of tokens, the bucket, MT or
 * NT. More than 64 tokens are more blocks (numerics = strict runs prefill like this).
 *
 * Before grid_wait() each warp has its first steps of W in flight. */
#include "kernels/cuda_device.cuh"

#define WARPS 8
#define UNIT  64 /* columns */
#define STEP  32

enum linear_kind { LINEAR_QKV, LINEAR_RESIDUAL, LINEAR_GATE_UP, LINEAR_LOGITS };

struct linear_args {
    const uint16_t *w;   /* [n][k] */
    const uint16_t *in;  /* [rows][k] bf16 */
    uint32_t n, k;       /* padded to 16 and 64 */
    uint32_t rows;       /* bucket: rows of `in` and of the output, or the most logits */
    const float *ssq;    /* [.][hidden / 16], or NULL: no norm */
    uint32_t hidden;
    float eps;
    const float *bias;   /* or NULL */
    const float *gain;   /* RESIDUAL: of the next norm */
    float *out;          /* [rows][ld_out] */
    uint16_t *out16;     /* RESIDUAL: xg; GATE_UP: hid */
    float *out_ssq;      /* RESIDUAL */
    uint32_t ld_out;     /* of out; of out16 when there is no out */
    const struct gpu_row *live;
    const struct gpu_step_args *step; /* LOGITS */
    struct gpu_caps caps;
};

template <int MT> DEVICE void load_weights(uint4 (*a)[2], const uint16_t *const *row, uint32_t k)
{
#pragma unroll
    for (int i = 0; i < MT; i++) {
        a[i][0] = load_stream(row[2 * i] + k);
        a[i][1] = load_stream(row[2 * i + 1] + k);
    }
}

template <int NT> DEVICE void load_tokens(uint4 *b, const uint16_t *const *row, uint32_t k)
{
#pragma unroll
    for (int j = 0; j < NT; j++)
        b[j] = load16(row[j] + k);
}

/* Column of this lane's 8 numbers in a warp's step. */
DEVICE uint32_t step_column(uint32_t step)
{
    return (warp_id() + step / 2 * WARPS) * UNIT + step % 2 * STEP + lane_id() % 4 * 8;
}

/* What a finished sum becomes. n: row of W; token: row of the output; rs: scale of its norm. The 16
 * threads of one token and one tile of W come here together; `stored`: the output exists. */
template <int KIND>
DEVICE void finish(const struct linear_args &a, float y, float rs, uint32_t n, uint32_t token,
                   bool stored)
{
    size_t at = (size_t)token * a.ld_out + n;
    if (KIND == LINEAR_RESIDUAL) {
        y = stored ? __fadd_rn(a.out[at], y) : 0;
        float s = ssq16(y);
        if (!stored)
            return;
        a.out[at] = y;
        a.out16[at] = to_bf16(__fmul_rn(y, a.gain[n]));
        if (n % 16 == 0)
            a.out_ssq[at / 16] = s;
        return;
    }
    y = __fmul_rn(y, rs);
    if (KIND == LINEAR_GATE_UP) {
        float up = __shfl_xor_sync(FULL, y, 8); /* rows 0-7 of a tile are gates, 8-15 their ups */
        if (stored && n % 16 < 8)
            a.out16[(size_t)token * a.ld_out + n / 16 * 8 + n % 8] = to_bf16(__fmul_rn(silu(y), up));
    } else if (stored) {
        a.out[at] = KIND == LINEAR_QKV && a.bias ? __fadd_rn(y, a.bias[n]) : y;
    }
}

/* MT: tiles of 16 rows of W; NT: tiles of 8 tokens; DA: steps of W in flight; DB: of tokens. */
template <int KIND, int MT, int NT, int DA, int DB>
__global__ void __launch_bounds__(WARPS * 32, NT <= 2 ? 2 : 1)
    linear_kernel(const __grid_constant__ linear_args a)
{
    constexpr int TOKENS = 8 * NT, ROWS = 16 * MT;
    constexpr int LD = ROWS + 4; /* of the partial sums, without bank conflicts */
    SHARED_DYNAMIC(float, part); /* [WARPS][TOKENS][LD] */
    SHARED_ARRAY(float, scale, TOKENS);
    SHARED_ARRAY(uint32_t, source, TOKENS); /* row of the step, FULL: no output */
    uint32_t g = lane_id() / 4, t = lane_id() % 4, warp = warp_id();
    uint32_t token0 = blockIdx.x * TOKENS, n0 = blockIdx.y * ROWS;
    uint32_t units = a.k / UNIT, n_steps = units > warp ? (units - warp + WARPS - 1) / WARPS * 2 : 0;

    const uint16_t *w_row[2 * MT];
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        uint32_t n = n0 + g + 8 * i;
        w_row[i] = a.w + (size_t)(n < a.n ? n : g) * a.k; /* rows beyond n: computed, not stored */
    }
    uint4 wa[DA][MT][2], xb[DB][NT];
#pragma unroll
    for (int d = 0; d < DA; d++)
        if ((uint32_t)d < n_steps)
            load_weights<MT>(wa[d], w_row, step_column(d));

    grid_wait();
    grid_launch_next();
    if (KIND == LINEAR_LOGITS && token0 >= a.step->n_logits)
        return;

    if (threadIdx.x < TOKENS) {
        uint32_t token = token0 + threadIdx.x, row = FULL;
        if (KIND == LINEAR_LOGITS) {
            if (token < a.step->n_logits)
                row = gpu_step_logit_row(a.step, &a.caps)[token];
        } else if (token < a.rows && a.live[token].position >= 0) {
            row = token;
        }
        source[threadIdx.x] = row;
    }
    __syncthreads();
    const uint16_t *x_row[NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
        uint32_t row = source[8 * j + g];
        x_row[j] = a.in + (size_t)(row == FULL ? 0 : row) * a.k; /* no output: any row will do */
    }
#pragma unroll
    for (int d = 0; d < DB; d++)
        if ((uint32_t)d < n_steps)
            load_tokens<NT>(xb[d], x_row, step_column(d));
    if (KIND != LINEAR_RESIDUAL)
        for (uint32_t i = warp; i < TOKENS; i += WARPS)
            if (source[i] != FULL) {
                float s = norm_scale(a.ssq + (size_t)source[i] * (gpu_pad(a.hidden, 64) / 16),
                                     a.hidden, a.eps);
                if (lane_id() == 0)
                    scale[i] = s;
            }

    float d[MT][NT][4] = {};
    for (uint32_t s0 = 0; s0 < n_steps; s0 += DA) {
#pragma unroll
        for (int i = 0; i < DA; i++) {
            uint32_t s = s0 + i;
            if (s < n_steps) {
                uint4(*w)[2] = wa[i], *x = xb[i % DB];
#pragma unroll
                for (int j = 0; j < NT; j++)
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        mma16816(d[m][j], w[m][0].x, w[m][1].x, w[m][0].y, w[m][1].y, x[j].x,
                                 x[j].y);
                        mma16816(d[m][j], w[m][0].z, w[m][1].z, w[m][0].w, w[m][1].w, x[j].z,
                                 x[j].w);
                    }
                if (s + DA < n_steps)
                    load_weights<MT>(w, w_row, step_column(s + DA));
                if (s + DB < n_steps)
                    load_tokens<NT>(x, x_row, step_column(s + DB));
            }
        }
    }

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[((size_t)warp * TOKENS + 8 * j + 2 * t + i % 2) * LD + 16 * m + g +
                     i / 2 * 8] = d[m][j][i];
    __syncthreads();

    for (uint32_t o = threadIdx.x; o < TOKENS * ROWS; o += WARPS * 32) {
        uint32_t i = o / ROWS, r = o % ROWS;
        float y = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            y = __fadd_rn(y, part[((size_t)w * TOKENS + i) * LD + r]);
        finish<KIND>(a, y, KIND == LINEAR_RESIDUAL ? 1 : scale[i], n0 + r, token0 + i,
                     source[i] != FULL && n0 + r < a.n);
    }
}

template <int KIND, int MT, int NT, int DA, int DB>
static int launch(struct gpu_launch l, const struct linear_args *args)
{
    struct linear_args a = *args;
    size_t shared = (size_t)WARPS * 8 * NT * (16 * MT + 4) * sizeof(float);
    dim3 grid((a.rows + 8 * NT - 1) / (8 * NT), (a.n + 16 * MT - 1) / (16 * MT));
    return LAUNCH(&l, (linear_kernel<KIND, MT, NT, DA, DB>), grid, dim3(WARPS * 32), shared, a);
}

template <int KIND> static int launch_kind(struct gpu_launch l, const struct linear_args *a)
{
    ASSERT(a->n % 16 == 0 && a->k % UNIT == 0 && a->rows > 0);
    if (a->rows <= 8)
        return launch<KIND, 1, 1, 4, 4>(l, a);
    if (a->rows <= 16)
        return launch<KIND, 1, 2, 4, 4>(l, a);
    if (a->rows <= 32)
        return launch<KIND, 2, 4, 4, 2>(l, a);
    return launch<KIND, 2, 8, 2, 2>(l, a);
}

template <int KIND> static int allow_shared(void)
{
    return ALLOW_SHARED((linear_kernel<KIND, 2, 8, 2, 2>), WARPS * 64 * 36 * sizeof(float));
}

int cuda_linear_init(void)
{
    int rc = allow_shared<LINEAR_QKV>();
    rc = rc ? rc : allow_shared<LINEAR_RESIDUAL>();
    rc = rc ? rc : allow_shared<LINEAR_GATE_UP>();
    return rc ? rc : allow_shared<LINEAR_LOGITS>();
}

/* The common part: a matrix over xg with the norm of the model. */
static struct linear_args args_of(const struct gpu_model *m, uint32_t rows, const uint16_t *w,
                                  uint32_t n, uint32_t k, const uint16_t *in, const float *ssq)
{
    struct linear_args a = {};
    a.w = w;
    a.in = in;
    a.n = n;
    a.k = gpu_pad(k, 64);
    a.rows = rows;
    a.ssq = ssq;
    a.hidden = m->hidden;
    a.eps = m->rms_eps;
    a.ld_out = n;
    a.live = m->rows;
    a.step = m->step;
    a.caps = m->caps;
    return a;
}

int cuda_linear_qkv(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                    const uint16_t *w, const float *bias, const uint16_t *xg, const float *ssq,
                    float *qkv)
{
    uint32_t n = (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    struct linear_args a = args_of(m, bucket, w, gpu_pad(n, 16), m->hidden, xg, ssq);
    a.bias = bias;
    a.out = qkv;
    return launch_kind<LINEAR_QKV>(l, &a);
}

int cuda_linear_residual(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                         const uint16_t *w, uint32_t k, const uint16_t *in, float *x,
                         const float *next_gain, uint16_t *xg, float *ssq)
{
    struct linear_args a = args_of(m, bucket, w, gpu_pad(m->hidden, 16), k, in, NULL);
    a.gain = next_gain;
    a.out = x;
    a.out16 = xg;
    a.out_ssq = ssq;
    a.ld_out = gpu_pad(m->hidden, 64);
    return launch_kind<LINEAR_RESIDUAL>(l, &a);
}

int cuda_linear_gate_up(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                        const uint16_t *w, const uint16_t *xg, const float *ssq, uint16_t *hid)
{
    struct linear_args a = args_of(m, bucket, w, 2 * gpu_pad(m->ffn, 8), m->hidden, xg, ssq);
    a.out16 = hid;
    a.ld_out = gpu_pad(m->ffn, 64);
    return launch_kind<LINEAR_GATE_UP>(l, &a);
}

int cuda_linear_logits(struct gpu_launch l, const struct gpu_model *m, uint32_t max_logits,
                       const uint16_t *w, const uint16_t *xg, const float *ssq, float *logits)
{
    struct linear_args a = args_of(m, max_logits, w, gpu_pad(m->vocab, 128), m->hidden, xg, ssq);
    a.out = logits;
    return launch_kind<LINEAR_LOGITS>(l, &a);
}
