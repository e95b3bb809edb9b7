/* gpu_cuda: the table of gpu_api.h on a device: the CUDA runtime (linked statically) and cuBLASLt
 * (loaded when the first matrix product is planned, so that a program without a GPU needs neither
 * library nor driver). C++ only because nvcc compiles it. */
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/gpu_api.h"
}

static int device;
static thread_local bool attached;

static int attach(void)
{
    if (attached)
        return 0;
    int rc = cudaSetDevice(device);
    attached = rc == 0;
    return rc;
}

static int device_open(int index, struct gpu_props *out)
{
    cudaDeviceProp p;
    int ordering = 0, options = 0;
    device = index;
    attached = false;
    int rc = attach();
    if (rc == 0)
        rc = cudaGetDeviceProperties(&p, index);
    if (rc == 0)
        rc = cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, index);
    if (rc == 0)
        rc = cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, index);
    if (rc != 0)
        return rc;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    out->sms = p.multiProcessorCount;
    out->major = p.major;
    out->minor = p.minor;
    out->memory = p.totalGlobalMem;
    /* Writes of a network card are ordered ahead of work that is launched after the transfer has
     * completed on the CPU when they are ordered to the owner at least. */
    out->flush_needed = ordering < cudaGPUDirectRDMAWritesOrderingOwner &&
                        (options & cudaFlushGPUDirectRDMAWritesOptionHost) != 0;
    return 0;
}

static int flush_writes(void)
{
    return cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                              cudaFlushGPUDirectRDMAWritesToOwner);
}

static int mem_info(size_t *left, size_t *total)
{
    return cudaMemGetInfo(left, total);
}

static int mem_alloc(void **out, size_t n)
{
    int rc = cudaMalloc(out, n);
    if (rc == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* it is no failure of the device */
    return rc;
}

static int mem_free(void *p)
{
    return cudaFree(p);
}

static int host_alloc(void **out, void **mapped, size_t n)
{
    int rc = cudaHostAlloc(out, n, cudaHostAllocPortable | cudaHostAllocMapped);
    if (rc == 0)
        rc = cudaHostGetDevicePointer(mapped, *out, 0);
    return rc;
}

static int host_free(void *p)
{
    return cudaFreeHost(p);
}

static int stream_create(struct gpu_stream **out, bool high_priority)
{
    int least, greatest;
    int rc = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (rc != 0)
        return rc;
    return cudaStreamCreateWithPriority((cudaStream_t *)out, cudaStreamNonBlocking,
                                        high_priority ? greatest : least);
}

static int stream_destroy(struct gpu_stream *s)
{
    return cudaStreamDestroy((cudaStream_t)s);
}

static int stream_sync(struct gpu_stream *s)
{
    return cudaStreamSynchronize((cudaStream_t)s);
}

static int stream_wait(struct gpu_stream *s, struct gpu_event *e)
{
    return cudaStreamWaitEvent((cudaStream_t)s, (cudaEvent_t)e, 0);
}

static int copy_async(void *to, const void *from, size_t n, enum gpu_copy kind,
                      struct gpu_stream *s)
{
    static const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                           cudaMemcpyDeviceToDevice};
    return cudaMemcpyAsync(to, from, n, kinds[kind], (cudaStream_t)s);
}

static int fill_async(void *to, int byte, size_t n, struct gpu_stream *s)
{
    return cudaMemsetAsync(to, byte, n, (cudaStream_t)s);
}

static int event_create(struct gpu_event **out, bool timing)
{
    return cudaEventCreateWithFlags((cudaEvent_t *)out,
                                    timing ? cudaEventDefault : cudaEventDisableTiming);
}

static int event_destroy(struct gpu_event *e)
{
    return cudaEventDestroy((cudaEvent_t)e);
}

static int event_record(struct gpu_event *e, struct gpu_stream *s)
{
    return cudaEventRecord((cudaEvent_t)e, (cudaStream_t)s);
}

static int event_query(struct gpu_event *e)
{
    return cudaEventQuery((cudaEvent_t)e);
}

static int event_sync(struct gpu_event *e)
{
    return cudaEventSynchronize((cudaEvent_t)e);
}

static int event_ms(float *out, struct gpu_event *from, struct gpu_event *to)
{
    return cudaEventElapsedTime(out, (cudaEvent_t)from, (cudaEvent_t)to);
}

/* ---- graphs --------------------------------------------------------------------------------- */

static int capture_begin(struct gpu_stream *s)
{
    return cudaStreamBeginCapture((cudaStream_t)s, cudaStreamCaptureModeThreadLocal);
}

static int capture_end(struct gpu_stream *s, struct gpu_graph **out)
{
    return cudaStreamEndCapture((cudaStream_t)s, (cudaGraph_t *)out);
}

static int graph_destroy(struct gpu_graph *g)
{
    return cudaGraphDestroy((cudaGraph_t)g);
}

static int graph_nodes(struct gpu_graph *g, size_t *out)
{
    return cudaGraphGetNodes((cudaGraph_t)g, NULL, out);
}

static int graph_instantiate(struct gpu_graph *g, struct gpu_exec **out)
{
    int rc = cudaGraphInstantiate((cudaGraphExec_t *)out, (cudaGraph_t)g, 0);
    if (rc == cudaErrorMemoryAllocation)
        cudaGetLastError();
    return rc;
}

static int exec_destroy(struct gpu_exec *x)
{
    return cudaGraphExecDestroy((cudaGraphExec_t)x);
}

static int exec_upload(struct gpu_exec *x, struct gpu_stream *s)
{
    return cudaGraphUpload((cudaGraphExec_t)x, (cudaStream_t)s);
}

static int exec_launch(struct gpu_exec *x, struct gpu_stream *s)
{
    return cudaGraphLaunch((cudaGraphExec_t)x, (cudaStream_t)s);
}

/* ---- cuBLASLt ------------------------------------------------------------------------------- */

#define LT_FUNCTIONS(X)                                                                            \
    X(cublasLtCreate)                                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoConfigSetAttribute)                                                        \
    X(cublasLtMatmul)

/* The functions by their own types; the library itself is not linked. */
static struct {
    cublasLtHandle_t handle;
#define LT_FIELD(name) decltype(&::name) name;
    LT_FUNCTIONS(LT_FIELD)
#undef LT_FIELD
} lt;

#define LT_ERROR 999 /* cudaErrorUnknown: what cuBLASLt says is in the text */
static char lt_error[160];

static int lt_failed(const char *what, int rc)
{
    snprintf(lt_error, sizeof lt_error, "cuBLASLt: %s: status %d", what, rc);
    return LT_ERROR;
}

#define LT_TRY(call)                                                                               \
    do {                                                                                           \
        cublasStatus_t lt_rc_ = lt.call;                                                           \
        if (lt_rc_ != CUBLAS_STATUS_SUCCESS)                                                       \
            return lt_failed(#call, lt_rc_);                                                       \
    } while (0)

static int lt_open(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void *library = NULL;
    if (lt.handle)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(lt_error, sizeof lt_error, "%s", dlerror());
        return LT_ERROR;
    }
#define LT_LOAD(name)                                                                              \
    lt.name = (decltype(&::name))dlsym(library, #name);                                            \
    if (!lt.name)                                                                                  \
        return lt_failed(#name " is not in the library", 0);
    LT_FUNCTIONS(LT_LOAD)
#undef LT_LOAD
    LT_TRY(cublasLtCreate(&lt.handle));
    return 0;
}

struct gpu_matmul {
    struct gpu_matmul_desc d;
    cublasLtMatmulDesc_t op;
    cublasLtMatmulAlgo_t algo;
};

/* cuBLASLt is column-major: it computes Y^T [n][m] = W [n][k] X^T [k][m], and a row-major matrix is
 * its transpose in column-major order. So A = W (k x n, to be transposed), B = X (k x m). */
struct layouts {
    cublasLtMatrixLayout_t a, b, y;
};

static int layouts_create(const struct gpu_matmul_desc *d, uint32_t m, struct layouts *out)
{
    LT_TRY(cublasLtMatrixLayoutCreate(&out->a, CUDA_R_16BF, d->k, d->n, d->k));
    LT_TRY(cublasLtMatrixLayoutCreate(&out->b, CUDA_R_16BF, d->k, m, d->k));
    LT_TRY(
        cublasLtMatrixLayoutCreate(&out->y, d->y_f32 ? CUDA_R_32F : CUDA_R_16BF, d->n, m, d->ldy));
    return 0;
}

static void layouts_destroy(struct layouts *l)
{
    if (l->a)
        lt.cublasLtMatrixLayoutDestroy(l->a);
    if (l->b)
        lt.cublasLtMatrixLayoutDestroy(l->b);
    if (l->y)
        lt.cublasLtMatrixLayoutDestroy(l->y);
}

/* Whether the algorithm runs for this m within the workspace. */
static bool runs(const struct gpu_matmul *p, const struct layouts *l,
                 const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t r = {};
    return lt.cublasLtMatmulAlgoCheck(lt.handle, p->op, l->a, l->b, l->y, l->y, algo, &r) ==
               CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= p->d.workspace;
}

/* The best algorithm that does not split K: sums in one order, whatever m. */
static int choose(const struct gpu_matmul *p, const struct layouts *l, cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found[16];
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    int n = 0, one = 1;
    LT_TRY(cublasLtMatmulPreferenceCreate(&pref));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &p->d.workspace, sizeof p->d.workspace));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                &none, sizeof none));
    cublasStatus_t rc = lt.cublasLtMatmulAlgoGetHeuristic(lt.handle, p->op, l->a, l->b, l->y, l->y,
                                                          pref, 16, found, &n);
    lt.cublasLtMatmulPreferenceDestroy(pref);
    if (rc != CUBLAS_STATUS_SUCCESS || n == 0)
        return lt_failed("no algorithm for this product", rc);
    for (int i = 0; i < n; i++) {
        cublasLtMatmulAlgo_t algo = found[i].algo;
        int split = 1;
        size_t written;
        lt.cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                sizeof split, &written);
        if (split > 1)
            LT_TRY(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                        &one, sizeof one));
        if (found[i].state == CUBLAS_STATUS_SUCCESS && runs(p, l, &algo)) {
            *out = algo;
            return 0;
        }
    }
    return lt_failed("no algorithm without split-K", n);
}

static int matmul_destroy(struct gpu_matmul *p)
{
    if (p && p->op)
        lt.cublasLtMatmulDescDestroy(p->op);
    free(p);
    return 0;
}

static int prepare(struct gpu_matmul *p)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    struct layouts l = {};
    LT_TRY(cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_TRY(cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                          sizeof transposed));
    int rc = layouts_create(&p->d, p->d.m_max, &l);
    if (rc == 0)
        rc = choose(p, &l, &p->algo);
    layouts_destroy(&l);
    return rc;
}

static int matmul_create(const struct gpu_matmul_desc *d, struct gpu_matmul **out)
{
    int rc = lt_open();
    if (rc != 0)
        return rc;
    struct gpu_matmul *p = (struct gpu_matmul *)calloc(1, sizeof *p);
    if (!p)
        return cudaErrorMemoryAllocation;
    p->d = *d;
    rc = prepare(p);
    if (rc != 0) {
        matmul_destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

static int run(const struct gpu_matmul *p, const struct layouts *l, const void *x, const void *w,
               void *y, void *workspace, struct gpu_stream *s)
{
    const float one = 1, beta = p->d.accumulate ? 1 : 0;
    cublasLtMatmulAlgo_t algo = p->algo;
    if (!runs(p, l, &algo)) { /* not for so few rows: another one, always the same for this m */
        int rc = choose(p, l, &algo);
        if (rc != 0)
            return rc;
    }
    LT_TRY(cublasLtMatmul(lt.handle, p->op, &one, w, l->a, x, l->b, &beta, y, l->y, y, l->y, &algo,
                          workspace, p->d.workspace, (cudaStream_t)s));
    return 0;
}

static int matmul_run(struct gpu_matmul *p, uint32_t m, const void *x, const void *w, void *y,
                      void *workspace, struct gpu_stream *s)
{
    struct layouts l = {};
    int rc = layouts_create(&p->d, m, &l);
    if (rc == 0)
        rc = run(p, &l, x, w, y, workspace, s);
    layouts_destroy(&l);
    return rc;
}

/* ---- the table ------------------------------------------------------------------------------ */

static int last_error(void)
{
    return cudaGetLastError();
}

static const char *error_text(int rc)
{
    return rc == LT_ERROR && *lt_error ? lt_error : cudaGetErrorString((cudaError_t)rc);
}

extern "C" const struct gpu_api *gpu_api_open(char *err, size_t errlen)
{
    static struct gpu_api api;
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0) {
        snprintf(err, errlen, "no CUDA device: %s",
                 rc != cudaSuccess ? cudaGetErrorString(rc) : "none is visible");
        return NULL;
    }
    api.name = "cuda";
    api.device_open = device_open;
    api.mem_info = mem_info;
    api.thread_attach = attach;
    api.flush_writes = flush_writes;
    api.mem_alloc = mem_alloc;
    api.mem_free = mem_free;
    api.host_alloc = host_alloc;
    api.host_free = host_free;
    api.stream_create = stream_create;
    api.stream_destroy = stream_destroy;
    api.stream_sync = stream_sync;
    api.stream_wait = stream_wait;
    api.copy_async = copy_async;
    api.fill_async = fill_async;
    api.event_create = event_create;
    api.event_destroy = event_destroy;
    api.event_record = event_record;
    api.event_query = event_query;
    api.event_sync = event_sync;
    api.event_ms = event_ms;
    api.capture_begin = capture_begin;
    api.capture_end = capture_end;
    api.graph_destroy = graph_destroy;
    api.graph_nodes = graph_nodes;
    api.graph_instantiate = graph_instantiate;
    api.exec_destroy = exec_destroy;
    api.exec_upload = exec_upload;
    api.exec_launch = exec_launch;
    api.matmul_create = matmul_create;
    api.matmul_destroy = matmul_destroy;
    api.matmul_run = matmul_run;
    api.last_error = last_error;
    api.error_text = error_text;
    return &api;
}
