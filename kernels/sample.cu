/* sample: from logits to a token, on the device; one block per row. The semantics, and the bits of
 * every decision, are those of common/engine/sample.c, whose order of operations is followed where
 * it matters:
 *
 *   - the exponential is the same sequence of rounded operations;
 *   - a cut (top_k, top_p) is the same radix selection. Counts are integers. The weight of a bin is
 *     summed in fixed point: the weights of one bin differ by at most 12 binary orders, so 38 bits
 *     hold each exactly and their sum is exact, in any order; so is the sum of the CPU, in double,
 *     up to what 2^53 holds. From bin to bin the sums are formed in double, in ascending order;
 *   - the draw adds blocks of 256 ids in 8 parts, and the blocks in order, as the CPU does.
 *
 * What has to be done in order by one thread is short: the bins that are not empty, one addition
 * per 256 ids, and the 256 ids of the block that is hit. */
#include "kernels/cuda_device.cuh"

#define THREADS       512
#define WARPS         (THREADS / 32)
#define LOGIT_MAX     1e30f
#define LOGPROB_FLOOR (-9999.0f)
#define RADIX_BITS    11
#define RADIX_BINS    (1 << RADIX_BITS)
#define RADIX_STEPS   3
#define KEY_NONE      0x7f800000u
#define BLOCK         256
#define BLOCKS_MAX    2048 /* of ids */
#define PART_BITS     13   /* of the three parts of a weight in fixed point */
#define NO_ID         0xffffffffu
#define AT_ONCE       8 /* loads of a thread in flight: one block reads a whole row */

struct sample_args {
    const float *logits;
    uint32_t ld, vocab;
    const uint32_t *mask;
    uint32_t mask_stride;
    float *scratch;
    struct gpu_slot *slots;
    struct gpu_result *results;
    const struct gpu_step_args *step;
    struct gpu_caps caps;
};

/* An id and its value; better: the larger value, then the lower id. */
struct best {
    float x;
    uint32_t id;
};

struct sample_shared {
    union {
        struct {
            uint32_t count[RADIX_BINS];
            uint32_t part[3][RADIX_BINS];
        } bins;
        double block[BLOCKS_MAX];
    };
    float weights[BLOCK];
    struct gpu_sample sample;
    struct best best[WARPS];
    uint32_t ties[WARPS];
    /* Between thread 0 (or warp 0) and the rest. */
    uint32_t prefix, keep, total_ties, hit, drawn;
    uint64_t count;
    double mass, target, total, at;
};

DEVICE float exp_negative(float x)
{
    float c = x > -87.0f ? x : -87.0f;
    float n = __fadd_rn(__fmul_rn(c, 1.44269504f), 12582912.0f);
    int32_t k = (int32_t)__float_as_uint(n);
    n = __fsub_rn(n, 12582912.0f);
    float r = __fsub_rn(__fsub_rn(c, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440e-4f));
    float p = 1.9875691500e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    p = __fmul_rn(p, __uint_as_float((uint32_t)(k - 0x4b400000 + 127) << 23));
    return x > -87.0f ? p : 0;
}

DEVICE float clean(float x)
{
    float lo = x > -LOGIT_MAX ? x : -LOGIT_MAX;
    return lo < LOGIT_MAX ? lo : LOGIT_MAX;
}

DEVICE uint32_t key_of(float s)
{
    return __float_as_uint(__fsub_rn(0.0f, s));
}

DEVICE float philox_uniform(uint64_t seed, uint32_t choice, uint32_t position)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c[4] = {position, 0, choice, 0};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (float)(c[0] >> 8) * 5.9604644775390625e-8f;
}

/* ---- a row ---- */

struct row {
    const float *logits;
    const uint32_t *mask; /* or NULL */
    const struct gpu_sample *p;
    uint32_t n; /* known ids */
    bool adjusted; /* s holds the logits that are drawn from */
    float *s;   /* scratch */
    struct sample_shared *sm;
};

DEVICE uint32_t mask_word(const struct row &r, uint32_t i)
{
    return r.mask ? r.mask[i / 32] : FULL;
}

DEVICE bool allowed(const struct row &r, uint32_t i, uint32_t word)
{
    bool yes = word >> i % 32 & 1;
    for (uint32_t j = 0; j < r.p->n_banned; j++)
        yes = yes && r.p->banned[j] != (int32_t)i;
    return yes;
}

/* visit(id, logit) for this thread's ids, ascending. The logit is one that may be drawn;
 * -INFINITY: it must not. */
template <class F> DEVICE void each_candidate(const struct row &r, F visit)
{
    const float *from = r.adjusted ? r.s : r.logits;
    for (uint32_t base = threadIdx.x; base < r.n; base += AT_ONCE * THREADS) {
        float x[AT_ONCE];
        uint32_t word[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            uint32_t i = base + j * THREADS;
            x[j] = i < r.n ? from[i] : 0;
            word[j] = i < r.n ? mask_word(r, i) : 0;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            uint32_t i = base + j * THREADS;
            float c = x[j] < LOGIT_MAX ? x[j] : LOGIT_MAX;
            if (i < r.n)
                visit(i, x[j] == x[j] && allowed(r, i, word[j]) ? c : -INFINITY);
        }
    }
}

/* A number of the scratch memory that is needed soon. */
DEVICE float ahead(const struct row &r, uint32_t i)
{
    return i < r.n ? r.s[i] : -INFINITY;
}

DEVICE struct best better(struct best a, struct best b)
{
    bool second = b.id != NO_ID && (a.id == NO_ID || b.x > a.x || (b.x == a.x && b.id < a.id));
    return second ? b : a;
}

/* The best of the block's; the same in every thread. Ends with a barrier. */
DEVICE struct best block_best(struct sample_shared *sm, struct best b)
{
    for (int o = 16; o > 0; o /= 2) {
        struct best other = {__shfl_xor_sync(FULL, b.x, o), __shfl_xor_sync(FULL, b.id, o)};
        b = better(b, other);
    }
    if (lane_id() == 0)
        sm->best[warp_id()] = b;
    __syncthreads();
    b = sm->best[0];
    for (int i = 1; i < WARPS; i++)
        b = better(b, sm->best[i]);
    __syncthreads();
    return b;
}

/* ---- cuts: scratch holds -(distance to the best) / temperature ---- */

/* Binary order below which no weight of a bin of the first step has bits: that of its largest
 * weight, less the width of a bin. */
DEVICE int bin_order(uint32_t bin)
{
    float largest = exp_negative(-__uint_as_float(bin << (31 - RADIX_BITS)));
    return (int)(__float_as_uint(largest) >> 23) - 13;
}

DEVICE void bins_clear(struct sample_shared *sm)
{
    for (uint32_t i = threadIdx.x; i < RADIX_BINS; i += THREADS) {
        sm->bins.count[i] = 0;
        for (int j = 0; j < 3; j++)
            sm->bins.part[j][i] = 0;
    }
    __syncthreads();
}

/* Adds the warp's candidates (bin NO_ID: none) to their bins, one bin after another. */
DEVICE void bins_add(struct sample_shared *sm, uint32_t bin, bool weigh, float w, int order)
{
    uint64_t fixed = 0;
    if (weigh && w > 0) {
        uint32_t u = __float_as_uint(w);
        fixed = (uint64_t)((u & 0x7fffffu) | 0x800000u) << ((int)(u >> 23) - order);
    }
    uint32_t left = __ballot_sync(FULL, bin != NO_ID);
    while (left) {
        int first = __ffs(left) - 1;
        bool same = bin == __shfl_sync(FULL, bin, first);
        uint32_t group = __ballot_sync(FULL, same);
        left &= ~group;
        uint32_t part[3] = {0, 0, 0};
        if (weigh)
            for (int j = 0; j < 3; j++)
                part[j] = __reduce_add_sync(
                    FULL, same ? (uint32_t)(fixed >> PART_BITS * j) & ((1u << PART_BITS) - 1) : 0);
        if ((int)lane_id() == first) {
            atomicAdd(&sm->bins.count[bin], (uint32_t)__popc(group));
            for (int j = 0; weigh && j < 3; j++)
                atomicAdd(&sm->bins.part[j][bin], part[j]);
        }
    }
}

DEVICE double bin_mass(const struct sample_shared *sm, uint32_t bin, int order)
{
    uint64_t sum = sm->bins.part[0][bin] + ((uint64_t)sm->bins.part[1][bin] << PART_BITS) +
                   ((uint64_t)sm->bins.part[2][bin] << 2 * PART_BITS);
    return ldexp((double)sum, order - 150);
}

/* Finds the bin that the cut falls into, by warp 0; sm->count and sm->mass grow by what is better.
 * order: of the bins of step 0 (their own), or of the prefix. Returns NO_ID: all bins are empty. */
DEVICE uint32_t bins_choose(struct sample_shared *sm, bool by_mass, uint32_t limit, int step,
                            int prefix_order)
{
    uint64_t count = sm->count;
    double mass = sm->mass, last_mass = 0;
    uint32_t chosen = NO_ID, last_count = 0;
    for (uint32_t base = 0; base < RADIX_BINS; base += 32) {
        uint32_t bin = base + lane_id(), c = sm->bins.count[bin];
        double m = 0;
        if (by_mass && c)
            m = bin_mass(sm, bin, step == 0 ? bin_order(bin) : prefix_order);
        for (uint32_t left = __ballot_sync(FULL, c != 0); left; left &= left - 1) {
            int lane = __ffs(left) - 1;
            count += last_count;
            mass = __dadd_rn(mass, last_mass);
            chosen = base + lane;
            last_count = __shfl_sync(FULL, c, lane);
            last_mass = __shfl_sync(FULL, m, lane);
            if (by_mass ? __dadd_rn(mass, last_mass) >= sm->target : count + last_count >= limit)
                goto found;
        }
    }
found:
    __syncwarp();
    if (lane_id() == 0) {
        sm->count = count;
        sm->mass = mass;
        sm->total_ties = last_count;
    }
    return chosen;
}

/* The weight of all candidates, by warp 0 after the first step. */
DEVICE double bins_total(const struct sample_shared *sm)
{
    double total = 0;
    for (uint32_t base = 0; base < RADIX_BINS; base += 32) {
        uint32_t bin = base + lane_id(), c = sm->bins.count[bin];
        double m = c ? bin_mass(sm, bin, bin_order(bin)) : 0;
        for (uint32_t left = __ballot_sync(FULL, c != 0); left; left &= left - 1)
            total = __dadd_rn(total, __shfl_sync(FULL, m, __ffs(left) - 1));
    }
    return total;
}

/* How many candidates at the threshold stay; by thread 0. */
DEVICE uint32_t ties_kept(const struct sample_shared *sm, bool by_mass, uint32_t limit)
{
    if (!by_mass) {
        uint64_t room = sm->count < limit ? limit - sm->count : 0;
        return room < sm->total_ties ? (uint32_t)room : sm->total_ties;
    }
    double w = exp_negative(-__uint_as_float(sm->prefix)), mass = __dadd_rn(sm->mass, w);
    uint32_t n = 1;
    for (; n < sm->total_ties && mass < sm->target; n++)
        mass = __dadd_rn(mass, w);
    return n;
}

/* Drops what is worse than the threshold, and its ties from the sm->keep-th on. */
DEVICE void cut_apply(const struct row &r)
{
    struct sample_shared *sm = r.sm;
    uint32_t prefix = sm->prefix, keep = sm->keep, seen = 0;
    bool all = keep >= sm->total_ties;
    float next = ahead(r, threadIdx.x);
    for (uint32_t base = 0; base < r.n; base += THREADS) {
        uint32_t i = base + threadIdx.x, k = i < r.n ? key_of(next) : 0;
        next = ahead(r, i + THREADS);
        bool tie = i < r.n && k == prefix, drop = k > prefix;
        if (!all) {
            uint32_t ties = __ballot_sync(FULL, tie);
            if (lane_id() == 0)
                sm->ties[warp_id()] = __popc(ties);
            __syncthreads();
            uint32_t before = seen + __popc(ties & ((1u << lane_id()) - 1));
            for (uint32_t w = 0; w < WARPS; w++) {
                before += w < warp_id() ? sm->ties[w] : 0;
                seen += sm->ties[w];
            }
            drop = drop || (tie && before >= keep);
            __syncthreads();
        }
        if (i < r.n && drop)
            r.s[i] = -INFINITY;
    }
    __syncthreads();
}

/* Keeps the best candidates: `limit` of them, or as few as have `share` of the weight. */
DEVICE void cut(const struct row &r, bool by_mass, uint32_t limit, double share)
{
    struct sample_shared *sm = r.sm;
    if (threadIdx.x == 0) {
        sm->prefix = 0;
        sm->count = 0;
        sm->mass = sm->target = 0;
    }
    __syncthreads();
    for (int step = 0; step < RADIX_STEPS; step++) {
        int shift = step == RADIX_STEPS - 1 ? 0 : 31 - RADIX_BITS * (step + 1);
        int above = 31 - RADIX_BITS * step;
        uint32_t prefix = sm->prefix, mask = (1u << (above - shift)) - 1;
        /* Bins of the later steps are parts of one bin of the first. */
        int order = step == 0 ? 0 : bin_order(step == 1 ? prefix : prefix >> RADIX_BITS);
        bins_clear(sm);
        float next = ahead(r, threadIdx.x);
        for (uint32_t base = 0; base < r.n; base += THREADS) {
            uint32_t i = base + threadIdx.x, bin = NO_ID;
            float s = next, w = 0;
            next = ahead(r, i + THREADS);
            uint32_t k = key_of(s);
            if (k < KEY_NONE && (step == 0 || k >> above == prefix)) {
                bin = k >> shift & mask;
                w = by_mass ? exp_negative(s) : 0;
            }
            bins_add(sm, bin, by_mass, w, step == 0 && bin != NO_ID ? bin_order(bin) : order);
        }
        __syncthreads();
        if (warp_id() == 0) {
            if (step == 0 && by_mass) {
                double total = bins_total(sm);
                if (lane_id() == 0)
                    sm->target = __dmul_rn(share, total);
                __syncwarp();
            }
            uint32_t bin = bins_choose(sm, by_mass, limit, step, order);
            if (lane_id() == 0)
                sm->prefix = bin == NO_ID ? NO_ID
                             : step == RADIX_STEPS - 1
                                 ? prefix << (31 - RADIX_BITS * step) | bin
                                 : prefix << RADIX_BITS | bin;
        }
        __syncthreads();
        if (sm->prefix == NO_ID)
            return; /* no candidates at all */
    }
    if (threadIdx.x == 0)
        sm->keep = ties_kept(sm, by_mass, limit);
    __syncthreads();
    cut_apply(r);
}

/* ---- sums in the order of the CPU ---- */

/* sm->block[b] = the sum of weight(i) over the ids of block b: eight parts, then these in order; a
 * last block's rest goes to the first part. sm->total: of all blocks, in order. */
template <class F> DEVICE void sum_blocks(struct sample_shared *sm, uint32_t n, F weight)
{
    uint32_t n_blocks = (n + BLOCK - 1) / BLOCK, l = lane_id() % 8;
    for (uint32_t base = 0; base < n_blocks; base += THREADS / 8) {
        uint32_t b = base + threadIdx.x / 8, at = b * BLOCK;
        uint32_t len = at < n ? (n - at < BLOCK ? n - at : BLOCK) : 0;
        float s = 0;
        uint32_t i = 0;
#pragma unroll 8
        for (; i + 8 <= len; i += 8)
            s = __fadd_rn(s, weight(at + i + l));
        for (; l == 0 && i < len; i++)
            s = __fadd_rn(s, weight(at + i));
        double sum = 0;
        for (int j = 0; j < 8; j++)
            sum = __dadd_rn(sum, (double)__shfl_sync(FULL, s, (int)(lane_id() & ~7u) + j));
        if (l == 0 && len > 0)
            sm->block[b] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
        for (uint32_t b = 0; b < n_blocks; b++)
            total = __dadd_rn(total, sm->block[b]);
        sm->total = total;
    }
    __syncthreads();
}

/* Turns the candidates into weights and draws one with the uniform number u. */
DEVICE uint32_t draw(const struct row &r, float u)
{
    struct sample_shared *sm = r.sm;
    for (uint32_t base = threadIdx.x; base < r.n; base += AT_ONCE * THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            x[j] = ahead(r, base + j * THREADS);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (base + j * THREADS < r.n)
                r.s[base + j * THREADS] = exp_negative(x[j]);
    }
    __syncthreads();
    sum_blocks(sm, r.n, [&](uint32_t i) { return r.s[i]; });
    uint32_t n_blocks = (r.n + BLOCK - 1) / BLOCK, next_block = 0, last = 0;
    double target = __dmul_rn((double)u, sm->total);
    if (threadIdx.x == 0)
        sm->at = 0;
    for (;;) {
        if (threadIdx.x == 0) { /* the next block that the target may be in */
            double at = sm->at;
            uint32_t b = next_block;
            for (; b < n_blocks && !(__dadd_rn(at, sm->block[b]) > target); b++)
                at = __dadd_rn(at, sm->block[b]);
            sm->at = at;
            sm->hit = b;
        }
        __syncthreads();
        uint32_t b = sm->hit;
        if (b == n_blocks)
            break;
        if (threadIdx.x < BLOCK && b * BLOCK + threadIdx.x < r.n)
            sm->weights[threadIdx.x] = r.s[b * BLOCK + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            double at = sm->at, next = __dadd_rn(at, sm->block[b]);
            bool found = false;
            for (uint32_t i = 0; !found && i < BLOCK && b * BLOCK + i < r.n; i++) {
                if (sm->weights[i] <= 0)
                    continue;
                last = b * BLOCK + i;
                at = __dadd_rn(at, (double)sm->weights[i]);
                found = at > target;
            }
            sm->at = next;
            sm->hit = found ? n_blocks : b;
        }
        __syncthreads();
        b = sm->hit;
        __syncthreads(); /* before it changes */
        if (b == n_blocks)
            break;
        next_block = b + 1;
    }
    if (threadIdx.x == 0)
        sm->drawn = last;
    __syncthreads();
    return sm->drawn;
}

DEVICE float adjusted(float x, const struct gpu_adjust &a, const struct gpu_sample *p)
{
    if (!(x > -INFINITY && x < INFINITY))
        return x;
    x = __fadd_rn(x, a.bias);
    if (a.seen && p->repetition > 0)
        x = x > 0 ? __fdiv_rn(x, p->repetition) : __fmul_rn(x, p->repetition);
    if (a.count > 0) {
        x = __fsub_rn(x, __fmul_rn(p->frequency, (float)a.count));
        x = __fsub_rn(x, p->presence);
    }
    return x < LOGIT_MAX ? x : LOGIT_MAX;
}

/* Fills scratch with the logits as bias and penalties leave them. */
DEVICE void adjust(const struct row &r)
{
    for (uint32_t base = threadIdx.x; base < r.n; base += AT_ONCE * THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            x[j] = base + j * THREADS < r.n ? r.logits[base + j * THREADS] : 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (base + j * THREADS < r.n)
                r.s[base + j * THREADS] = x[j] != x[j] ? -INFINITY : x[j] < LOGIT_MAX ? x[j] : LOGIT_MAX;
    }
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < r.p->n_adjust; k += THREADS) {
        struct gpu_adjust a = r.p->adjust[k];
        if ((uint32_t)a.id < r.n)
            r.s[a.id] = adjusted(r.s[a.id], a, r.p);
    }
    __syncthreads();
}

DEVICE uint32_t choose(const struct row &r)
{
    const struct gpu_sample *p = r.p;
    if (r.adjusted)
        adjust(r);
    struct best b = {0, NO_ID};
    each_candidate(r, [&](uint32_t i, float c) { b = better(b, {c, i}); });
    b = block_best(r.sm, b);
    if (b.x == -INFINITY) { /* no usable logit: the lowest id that is allowed */
        struct best first = {0, NO_ID};
        for (uint32_t i = threadIdx.x; i < r.n && first.id == NO_ID; i += THREADS)
            if (allowed(r, i, mask_word(r, i)))
                first.id = i;
        first = block_best(r.sm, first);
        return first.id == NO_ID ? 0 : first.id;
    }
    if (!(p->temperature > 0) || p->top_k == 1)
        return b.id;
    each_candidate(r, [&](uint32_t i, float c) {
        float x = __fdiv_rn(__fsub_rn(c, b.x), p->temperature);
        r.s[i] = x >= p->min_floor ? x : -INFINITY;
    });
    __syncthreads();
    if (p->top_k > 0 && (uint32_t)p->top_k < r.n)
        cut(r, false, (uint32_t)p->top_k, 0);
    if (p->top_p < 1)
        cut(r, true, 0, (double)p->top_p);
    return draw(r, philox_uniform(p->seed, p->choice, p->position));
}

/* ---- log probabilities, of the raw logits of the whole head ---- */

DEVICE float log_prob(float logit, float max, double log_sum)
{
    double p = (double)__fsub_rn(clean(logit), max) - log_sum;
    return p < (double)LOGPROB_FLOOR ? LOGPROB_FLOOR : p > 0 ? 0 : (float)p;
}

DEVICE void score(const struct row &r, uint32_t vocab, uint32_t token, struct gpu_result *out)
{
    float top = -INFINITY;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
        top = r.logits[i] > top ? r.logits[i] : top;
    struct best b = {top, threadIdx.x};
    float max = clean(block_best(r.sm, b).x);
    sum_blocks(r.sm, vocab,
               [&](uint32_t i) { return exp_negative(__fsub_rn(clean(r.logits[i]), max)); });
    double log_sum = log(r.sm->total);
    if (threadIdx.x == 0)
        out->logprob = log_prob(r.logits[token], max, log_sum);
    struct best before = {0, NO_ID};
    uint32_t n = 0;
    for (; n < r.p->n_top && n < GPU_TOP_MAX; n++) {
        struct best next = {0, NO_ID};
        for (uint32_t i = threadIdx.x; i < r.n; i += THREADS) {
            float x = r.logits[i];
            struct best y = {x, i};
            if (x == x && (before.id == NO_ID || x < before.x || (x == before.x && i > before.id)))
                next = better(next, y);
        }
        before = block_best(r.sm, next);
        if (before.id == NO_ID)
            break;
        if (threadIdx.x == 0) {
            out->top_id[n] = (int32_t)before.id;
            out->top_logprob[n] = log_prob(before.x, max, log_sum);
        }
    }
    if (threadIdx.x == 0)
        out->n_top = n;
}

__global__ void __launch_bounds__(THREADS, 1) sample_kernel(const __grid_constant__ sample_args a)
{
    SHARED(struct sample_shared, sm);
    grid_wait();
    grid_launch_next();
    uint32_t row = blockIdx.x;
    if (row >= a.step->n_logits)
        return;
    const struct gpu_sample *p = &gpu_step_samples(a.step, &a.caps)[row];
    struct gpu_result *out = &a.results[row];
    bool dead = (p->flags & GPU_SAMPLE_IF_ALIVE) && !a.slots[p->slot].alive;
    if ((p->flags & GPU_SAMPLE_SKIP) || dead) {
        if (threadIdx.x == 0) {
            out->token = -1;
            out->position = p->position;
            out->ended = dead;
            out->n_top = 0;
            out->logprob = 0;
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < sizeof *p / 4; i += THREADS) /* it is read for every id */
        ((uint32_t *)&sm.sample)[i] = ((const uint32_t *)p)[i];
    __syncthreads();
    p = &sm.sample;
    struct row r;
    r.logits = a.logits + (size_t)row * a.ld;
    r.mask = p->mask == GPU_NO_MASK ? NULL : a.mask + (size_t)p->mask * a.mask_stride;
    r.p = p;
    r.n = p->n_ids == 0 || p->n_ids > a.vocab ? a.vocab : p->n_ids;
    r.s = a.scratch + (size_t)row * a.ld;
    r.sm = &sm;
    r.adjusted = p->n_adjust > 0;
    uint32_t token = choose(r);
    if (threadIdx.x == 0) {
        bool ended = p->position >= p->last_position;
        for (uint32_t i = 0; i < p->n_stop; i++)
            ended = ended || p->stop[i] == (int32_t)token;
        out->token = (int32_t)token;
        out->position = p->position;
        out->ended = ended;
        out->n_top = 0;
        out->logprob = 0;
        if (p->slot != GPU_NO_SLOT) {
            struct gpu_slot slot = {(int32_t)token, !ended};
            a.slots[p->slot] = slot;
        }
    }
    if ((p->flags & GPU_SAMPLE_LOGPROB) || p->n_top > 0)
        score(r, a.vocab, token, out);
}

int cuda_sample(struct gpu_launch l, const struct gpu_model *m, uint32_t max_logits,
                const float *logits, const uint32_t *mask, uint32_t mask_stride, float *scratch,
                struct gpu_result *results)
{
    ASSERT(max_logits > 0 && m->vocab <= BLOCKS_MAX * BLOCK);
    struct sample_args a = {logits,  gpu_pad(m->vocab, 128), m->vocab, mask,    mask_stride,
                            scratch, m->slots,               results,  m->step, m->caps};
    return LAUNCH(&l, sample_kernel, dim3(max_logits), dim3(THREADS), 0, a);
}
