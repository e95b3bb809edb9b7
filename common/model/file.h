/* file: a model file, mapped read-only.
 *
 * Opening never blocks (a FIFO is refused) and accepts only regular, non-empty files. The mapping
 * is private and read-only. Pages of a file that another program cuts short cannot be read any
 * more: the kernel answers with SIGBUS, which no check can rule out. model_file_check compares the
 * file on disk with the mapping; model_open calls it after everything that reads the mapping, and
 * whoever packs weights calls it (through model_check) right before and after, so that a file
 * replaced by rewriting is reported in words unless it shrinks in the very moment of a read.
 * Replace model files by renaming a new one over them: the mapping then keeps the old file. */
#ifndef BATON_MODEL_FILE_H
#define BATON_MODEL_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "common/base/status.h"

struct model_file {
    char *path; /* as the user gave it, for messages */
    int fd;
    const uint8_t *data;
    size_t size;
    struct timespec mtime;
};

/* Embedded: open fills f, close undoes it; f is untouched on failure. */
int model_file_open(const char *path, struct model_file *f, char *err, size_t errlen) WARN_UNUSED;
void model_file_close(struct model_file *f);
/* Whether the file still has the size and the modification time it had when it was mapped. */
int model_file_check(const struct model_file *f, char *err, size_t errlen) WARN_UNUSED;

/* A file of a model directory: only plain names (no '/', no leading '.'), only regular files, and
 * only such whose real path lies in the directory itself or, for the snapshots of a Hugging Face
 * cache (…/snapshots/REVISION/), in that cache's …/blobs/. STATUS_NOTFOUND when there is none. */
int model_dir_open(const char *dir, const char *name, struct model_file *f, char *err,
                   size_t errlen) WARN_UNUSED;
/* Its contents, NUL-terminated, to be freed by the caller; STATUS_LIMIT when larger than max. */
int model_dir_read(const char *dir, const char *name, size_t max, char **out, size_t *n, char *err,
                   size_t errlen) WARN_UNUSED;

/* Formats one line into err (cut to errlen, control characters made '?') and returns rc. */
int model_error(char *err, size_t errlen, int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
