/* fake_gpu: the table of kernels/gpu_api.h on the CPU, for tests.
 *
 * Streams are queues; capture records what is enqueued into a list of nodes; a launch puts the list
 * into a queue. Nothing runs when it is enqueued: work is done one item at a time when the host
 * waits or asks (event_query, event_sync, stream_sync), and among streams that could go on the next
 * one is chosen at random by the seed. So an order that was not asked for by an event or by the
 * stream does not come about by luck.
 *
 * Whatever a device would forgive, or punish at random, aborts here with a line that says what:
 *   - waiting, asking, allocating or freeing while a stream is captured; work on another stream
 *     meanwhile; a copy from or to host memory inside a graph, which would keep its address;
 *   - host memory given to copy_async that is not page-locked, or that changes between the call
 *     and the copy; memory freed while work that was enqueued still uses it;
 *   - device memory used after it was freed or beyond its end (a pointer among a kernel's
 *     arguments, an end of a copy; inside of a kernel, AddressSanitizer);
 *   - destroying a graph that has not finished; launching one that was destroyed;
 *   - more rows than the captured bucket; a sequence with a block that is not complete, or whose
 *     receive has not ended (struct gpu_watch).
 * Fresh device memory is filled with NaNs, host memory that a copy will fill with 0xa5. What a
 * device reports, like memory that is used up, is reported; a graph costs memory as on the device.
 */
#ifndef BATON_TESTS_CUDA_EMU_FAKE_GPU_H
#define BATON_TESTS_CUDA_EMU_FAKE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How an emulated kernel gets into a stream. The emulator's launch calls this when it is linked (a
 * weak reference) and the launch names a stream; without a stream the emulator runs the grid at
 * once. `run(args)` runs the whole grid; n_args bytes of args are copied. Returns 0 or an error
 * number. */
int fake_gpu_enqueue(void *stream, const char *name, void (*run)(const void *args),
                     const void *args, size_t n_args);

struct gpu_api;
const struct gpu_api *fake_gpu_api(void);

struct fake_gpu_stats {
    uint64_t launches; /* of graphs */
    uint64_t enqueued; /* kernels outside of graphs, matmuls included */
    uint64_t kernels;  /* run, in graphs or not */
    uint64_t copies, fills, flushes;
    uint64_t allocs;    /* device and page-locked memory, graphs, events, streams */
    uint64_t nodes;     /* in graphs that live */
    size_t used, total; /* device memory */
    double seconds;     /* spent in the table's functions */
};
/* With $FAKE_GPU_REPORT a program prints the first two when it ends. */
struct fake_gpu_stats fake_gpu_stats(void);
/* Whether the calling thread is in a function of the table: what it allocates there is the
 * emulation's. */
bool fake_gpu_inside(void);
bool fake_gpu_is_device(const void *p); /* device memory that lives */
/* Device memory; $FAKE_GPU_MEMORY (bytes) at start, else 1 TiB. `other` is held by somebody else.
 */
void fake_gpu_memory(size_t total, size_t other);
void fake_gpu_seed(uint64_t seed);
/* The nth call (from 1) of this function of the table fails with rc; once. NULL: none. */
void fake_gpu_fail(const char *function, unsigned nth, int rc);
/* For tests of the fake itself: an abort whose line has this part ends the process with exit code
 * FAKE_GPU_EXPECTED instead. */
#define FAKE_GPU_EXPECTED 77
void fake_gpu_expect(const char *part);
/* For the emulator: shuffles the order of threads and blocks. Called before each kernel. */
void fake_gpu_on_kernel(void (*fn)(const char *name, uint64_t random));

#ifdef __cplusplus
}
#endif

#endif
