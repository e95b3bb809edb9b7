/* fake_internal: what the files of the fake share. */
#ifndef BATON_TESTS_CUDA_EMU_FAKE_INTERNAL_H
#define BATON_TESTS_CUDA_EMU_FAKE_INTERNAL_H

#include "kernels/gpu_api.h"
#include "tests/cuda_emu/fake_gpu.h"

_Noreturn void fake_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* fake_memory.c. All under the lock of fake_gpu.c. */
enum fake_kind { FAKE_DEVICE, FAKE_HOST };
int fake_alloc(enum fake_kind kind, size_t n, void **out);
void fake_free(enum fake_kind kind, void *p);
/* Dies unless [p, p + n) lies in living memory of the kind. */
void fake_check_range(enum fake_kind kind, const void *p, size_t n, const char *what);
bool fake_is_device(const void *p); /* living memory */
/* Dies when one of the words is an address of memory that was freed. */
void fake_check_args(const void *args, size_t n, const char *kernel);
/* Memory that graphs take. */
int fake_reserve(size_t n);
void fake_release(size_t n);
void fake_memory_info(size_t *used, size_t *total, size_t *other);
uint64_t fake_sum(const void *p, size_t n); /* FNV-1a, to notice changes */

/* fake_matmul.c */
struct fake_matmul;
int fake_matmul_create(const struct gpu_matmul_desc *d, struct gpu_matmul **out);
int fake_matmul_destroy(struct gpu_matmul *p);
struct fake_matmul_run {
    struct gpu_matmul_desc d;
    uint32_t m;
    const uint16_t *x, *w;
    void *y, *workspace;
};
void fake_matmul_run(const void *args); /* struct fake_matmul_run */
const struct gpu_matmul_desc *fake_matmul_desc(const struct gpu_matmul *p);

/* fake_watch.c: KV blocks. The pool is told of copies that will land in it. */
extern const struct gpu_watch fake_watch;
void fake_watch_copy(const void *to, size_t n, int change); /* enqueued: +1, done: -1 */
void fake_watch_freed(const void *p);

#endif
