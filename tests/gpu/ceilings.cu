/* ceilings: what the device can do at most, and what launches cost. Part of tests/gpu/run.sh.
 *
 *   ceilings probe      what the machine is
 *   ceilings stream     reading 8 GB once, and copying
 *   ceilings launch     graphs of 1 to 1000 empty nodes with and without programmatic dependent
 *                       launch, plain launches, node updates, a copy node against mapped memory
 *
 * Each line is "NAME VALUE UNIT". */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cudaError_t rc_ = (call);                                                                  \
        if (rc_ != cudaSuccess) {                                                                  \
            fprintf(stderr, "ceilings: %s: %s\n", #call, cudaGetErrorString(rc_));                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* ---- the machine ---------------------------------------------------------------------------- */

static int attribute(cudaDeviceAttr which)
{
    int v = -1;
    cudaDeviceGetAttribute(&v, which, 0);
    return v;
}

static void probe(void)
{
    cudaDeviceProp p;
    int driver = 0, runtime = 0;
    size_t left, total;
    TRY(cudaDriverGetVersion(&driver));
    TRY(cudaRuntimeGetVersion(&runtime));
    TRY(cudaGetDeviceProperties(&p, 0));
    TRY(cudaMemGetInfo(&left, &total));
    printf("# %s, sm_%d%d, driver %d, runtime %d\n", p.name, p.major, p.minor, driver, runtime);
    printf("probe.sms %d count\n", p.multiProcessorCount);
    printf("probe.memory %.1f GiB\n", (double)total / (1 << 30));
    printf("probe.free %.1f GiB\n", (double)left / (1 << 30));
    printf("probe.l2 %.1f MiB\n", (double)p.l2CacheSize / (1 << 20));
    printf("probe.shared_per_block %d B\n", attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    printf("probe.rdma_supported %d flag\n", attribute(cudaDevAttrGPUDirectRDMASupported));
    printf("probe.rdma_writes_ordering %d level\n",
           attribute(cudaDevAttrGPUDirectRDMAWritesOrdering));
    printf("probe.rdma_flush_options %d mask\n",
           attribute(cudaDevAttrGPUDirectRDMAFlushWritesOptions));
}

/* ---- memory --------------------------------------------------------------------------------- */

static __global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
        uint4 v[4];
        for (int k = 0; k < 4; k++)
            v[k] = i + k * step < n ? __ldcs(p + i + k * step) : make_uint4(0, 0, 0, 0);
        for (int k = 0; k < 4; k++)
            sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == 0x12345678)
        *out = sum; /* never, but nobody knows */
}

static __global__ void copy_all(const uint4 *p, uint4 *to, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        __stcs(to + i, __ldcs(p + i));
}

static void stream(void)
{
    size_t bytes = (size_t)8 << 30, n = bytes / 16;
    uint4 *p;
    uint32_t *out;
    cudaEvent_t a, b;
    int sms = attribute(cudaDevAttrMultiProcessorCount);
    TRY(cudaMalloc(&p, bytes));
    TRY(cudaMalloc(&out, 4));
    TRY(cudaMemset(p, 1, bytes));
    TRY(cudaEventCreate(&a));
    TRY(cudaEventCreate(&b));
    for (int kind = 0; kind < 2; kind++) {
        double t[9];
        for (int i = -2; i < 9; i++) {
            float ms;
            TRY(cudaEventRecord(a));
            if (kind == 0)
                read_all<<<sms * 8, 512>>>(p, n, out);
            else
                copy_all<<<sms * 8, 512>>>(p, p + n / 2, n / 2);
            TRY(cudaEventRecord(b));
            TRY(cudaEventSynchronize(b));
            TRY(cudaGetLastError());
            TRY(cudaEventElapsedTime(&ms, a, b));
            if (i >= 0)
                t[i] = (double)ms * 1e-3;
        }
        printf("ceiling.%s %.1f GB/s\n", kind == 0 ? "read" : "copy",
               (double)bytes / median(t, 9) * 1e-9);
    }
    TRY(cudaFree(p));
    TRY(cudaFree(out));
}

/* ---- launches ------------------------------------------------------------------------------- */

static __global__ void empty(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __global__ void read_args(const uint32_t *args, uint32_t n, uint32_t *out)
{
    uint32_t sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += args[i];
    atomicAdd(out, sum);
}

static void launch_empty(cudaStream_t s, bool pdl)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a = {};
    c.gridDim = 1;
    c.blockDim = 32;
    c.stream = s;
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
    c.attrs = &a;
    c.numAttrs = pdl ? 1 : 0;
    TRY(cudaLaunchKernelEx(&c, empty));
}

static cudaGraphExec_t capture(cudaStream_t s, int nodes, bool pdl)
{
    cudaGraph_t g;
    cudaGraphExec_t x;
    TRY(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; i++)
        launch_empty(s, pdl);
    TRY(cudaStreamEndCapture(s, &g));
    TRY(cudaGraphInstantiate(&x, g, 0));
    TRY(cudaGraphDestroy(g));
    TRY(cudaGraphUpload(x, s));
    return x;
}

/* Seconds a launch takes the device, and the host. */
static void time_graph(cudaStream_t s, cudaGraphExec_t x, double *device, double *host)
{
    double d[21], h[21];
    for (int i = -3; i < 21; i++) {
        double t0 = now();
        TRY(cudaGraphLaunch(x, s));
        double t1 = now();
        TRY(cudaStreamSynchronize(s));
        if (i >= 0) {
            h[i] = t1 - t0;
            d[i] = now() - t0;
        }
    }
    *device = median(d, 21);
    *host = median(h, 21);
}

static void plain_launches(cudaStream_t s)
{
    double t[21];
    for (int i = -3; i < 21; i++) {
        double t0 = now();
        for (int k = 0; k < 100; k++)
            launch_empty(s, false);
        double t1 = now();
        TRY(cudaStreamSynchronize(s));
        if (i >= 0)
            t[i] = (t1 - t0) / 100;
    }
    printf("launch.plain.host %.2f us\n", median(t, 21) * 1e6);
}

static void node_updates(cudaStream_t s)
{
    cudaGraph_t g;
    cudaGraphExec_t x;
    cudaGraphNode_t node;
    size_t n = 1;
    cudaKernelNodeParams params;
    double t[21];
    TRY(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    launch_empty(s, false);
    TRY(cudaStreamEndCapture(s, &g));
    TRY(cudaGraphGetNodes(g, &node, &n));
    TRY(cudaGraphKernelNodeGetParams(node, &params));
    TRY(cudaGraphInstantiate(&x, g, 0));
    for (int i = -3; i < 21; i++) {
        double t0 = now();
        for (int k = 0; k < 100; k++) {
            params.gridDim.x = 1 + k % 2;
            TRY(cudaGraphExecKernelNodeSetParams(x, node, &params));
        }
        if (i >= 0)
            t[i] = (now() - t0) / 100;
    }
    printf("launch.set_params.host %.2f us\n", median(t, 21) * 1e6);
    TRY(cudaGraphExecDestroy(x));
    TRY(cudaGraphDestroy(g));
}

/* The arguments of a step: copied ahead of the graph, or read from mapped memory by its first
 * node. */
static void arguments(cudaStream_t s)
{
    const size_t bytes = 48 << 10;
    uint32_t *host, *mapped, *device, *out;
    TRY(cudaHostAlloc(&host, bytes, cudaHostAllocMapped));
    TRY(cudaHostGetDevicePointer(&mapped, host, 0));
    TRY(cudaMalloc(&device, bytes));
    TRY(cudaMalloc(&out, 4));
    memset(host, 0, bytes);
    for (int kind = 0; kind < 2; kind++) {
        double t[21];
        for (int i = -3; i < 21; i++) {
            double t0 = now();
            if (kind == 0)
                TRY(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, s));
            read_args<<<1, 1024, 0, s>>>(kind == 0 ? device : mapped, bytes / 4, out);
            TRY(cudaStreamSynchronize(s));
            if (i >= 0)
                t[i] = now() - t0;
        }
        printf("args.%s %.2f us\n", kind == 0 ? "copy" : "mapped", median(t, 21) * 1e6);
    }
    TRY(cudaFree(device));
    TRY(cudaFree(out));
    TRY(cudaFreeHost(host));
}

static void launches(void)
{
    cudaStream_t s;
    TRY(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int pdl = 0; pdl <= (attribute(cudaDevAttrComputeCapabilityMajor) >= 9); pdl++)
        for (int nodes = 1; nodes <= 1000; nodes *= 10) {
            double device, host;
            cudaGraphExec_t x = capture(s, nodes, pdl != 0);
            time_graph(s, x, &device, &host);
            printf("launch.graph%s.n%d.total %.2f us\n", pdl ? ".pdl" : "", nodes, device * 1e6);
            printf("launch.graph%s.n%d.host %.2f us\n", pdl ? ".pdl" : "", nodes, host * 1e6);
            TRY(cudaGraphExecDestroy(x));
        }
    plain_launches(s);
    node_updates(s);
    arguments(s);
    TRY(cudaStreamDestroy(s));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "probe") == 0)
        probe();
    else if (strcmp(what, "stream") == 0)
        stream();
    else if (strcmp(what, "launch") == 0)
        launches();
    else {
        fprintf(stderr, "usage: ceilings probe|stream|launch\n");
        return 2;
    }
    return 0;
}
