/* file: a model file, mapped read-only; see file.h.
 *
 * Everything is opened with O_NONBLOCK, so that a FIFO in the place of a model cannot hang a
 * worker, and looked at with fstat before it is used, so that what was checked is what is read.
 *
 * A model directory is not trusted: a symbolic link inside it could lead anywhere. model_dir_open
 * resolves the real path first, compares it with the places that are allowed, and opens it with
 * O_NOFOLLOW. A program that swaps directories between the two steps wins nothing it could not have
 * by writing the weights, which it evidently can. */
#include "common/model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"

int model_error(char *err, size_t errlen, int rc, const char *fmt, ...)
{
    if (!errlen)
        return rc;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, errlen, fmt, args);
    va_end(args);
    for (char *p = err; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    return rc;
}

/* Opens `real` and maps it; messages and f->path name it `shown`. */
static int map_path(const char *shown, const char *real, int oflags, struct model_file *f,
                    char *err, size_t errlen)
{
    int fd = open(real, O_RDONLY | O_NONBLOCK | O_CLOEXEC | oflags);
    if (fd < 0)
        return model_error(err, errlen, status_from_errno(errno), "%s: %s", shown, strerror(errno));
    int rc;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        rc = model_error(err, errlen, STATUS_IO, "%s: %s", shown, strerror(errno));
        goto close_fd;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = model_error(err, errlen, STATUS_FORMAT, "%s: not a regular file", shown);
        goto close_fd;
    }
    if (st.st_size <= 0) {
        rc = model_error(err, errlen, STATUS_FORMAT, "%s: the file is empty", shown);
        goto close_fd;
    }
    char *path = mem_strdup(shown);
    if (!path) {
        rc = model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", shown);
        goto close_fd;
    }
    size_t size = (size_t)st.st_size;
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        rc = model_error(err, errlen, status_from_errno(errno), "%s: cannot map %zu bytes: %s",
                         shown, size, strerror(errno));
        goto free_path;
    }
    *f = (struct model_file){path, fd, data, size, st.st_mtim};
    return 0;
free_path:
    free(path);
close_fd:
    close(fd);
    return rc;
}

int model_file_open(const char *path, struct model_file *f, char *err, size_t errlen)
{
    return map_path(path, path, 0, f, err, errlen);
}

void model_file_close(struct model_file *f)
{
    munmap((void *)(uintptr_t)f->data, f->size);
    close(f->fd);
    free(f->path);
    *f = (struct model_file){.fd = -1};
}

int model_file_check(const struct model_file *f, char *err, size_t errlen)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return model_error(err, errlen, STATUS_IO, "%s: %s", f->path, strerror(errno));
    if ((size_t)st.st_size != f->size)
        return model_error(err, errlen, STATUS_CORRUPT,
                           "%s: the file changed while it was read (%zu bytes before, %lld now)",
                           f->path, f->size, (long long)st.st_size);
    if (st.st_mtim.tv_sec != f->mtime.tv_sec || st.st_mtim.tv_nsec != f->mtime.tv_nsec)
        return model_error(err, errlen, STATUS_CORRUPT, "%s: the file changed while it was read",
                           f->path);
    return 0;
}

static bool starts_with_dir(const char *path, const char *dir, size_t n)
{
    return strncmp(path, dir, n) == 0 && path[n] == '/' && path[n + 1];
}

/* Whether the real path lies below the real directory, or below blobs/ of the Hugging Face cache
 * whose snapshot the directory is. */
static bool path_allowed(const char *real, const char *dir)
{
    size_t n = strlen(dir);
    if (starts_with_dir(real, dir, n))
        return true;
    const char *slash = strrchr(dir, '/');
    static const char snapshots[] = "/snapshots";
    size_t parent = (size_t)(slash - dir), tail = sizeof snapshots - 1;
    if (parent < tail || memcmp(slash - tail, snapshots, tail) != 0)
        return false;
    size_t root = parent - tail;
    static const char blobs[] = "/blobs/";
    return strncmp(real, dir, root) == 0 && strncmp(real + root, blobs, sizeof blobs - 1) == 0;
}

int model_dir_open(const char *dir, const char *name, struct model_file *f, char *err,
                   size_t errlen)
{
    char joined[PATH_MAX], real_dir[PATH_MAX], real[PATH_MAX];
    if (!*name || *name == '.' || strchr(name, '/'))
        return model_error(err, errlen, STATUS_INVALID, "%s: '%s' is not a plain file name", dir,
                           name);
    int n = snprintf(joined, sizeof joined, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof joined)
        return model_error(err, errlen, STATUS_LIMIT, "%s: the path is too long", dir);
    if (!realpath(dir, real_dir) || !realpath(joined, real))
        return model_error(err, errlen, status_from_errno(errno), "%s: %s", joined,
                           strerror(errno));
    if (!path_allowed(real, real_dir))
        return model_error(err, errlen, STATUS_INVALID,
                           "%s: a link that leads out of the model directory", joined);
    return map_path(joined, real, O_NOFOLLOW, f, err, errlen);
}

int model_dir_read(const char *dir, const char *name, size_t max, char **out, size_t *n, char *err,
                   size_t errlen)
{
    struct model_file f;
    TRY(model_dir_open(dir, name, &f, err, errlen));
    int rc = 0;
    char *p = NULL;
    size_t got = 0;
    if (f.size > max) {
        rc = model_error(err, errlen, STATUS_LIMIT, "%s: %zu bytes, more than the %zu allowed",
                         f.path, f.size, max);
        goto close_file;
    }
    p = malloc(f.size + 1);
    if (!p) {
        rc = model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", f.path);
        goto close_file;
    }
    /* Read, not copied from the mapping: a file cut short then ends early instead of faulting. */
    while (got < f.size) {
        ssize_t k = pread(f.fd, p + got, f.size - got, (off_t)got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            rc = model_error(err, errlen, STATUS_IO, "%s: %s", f.path, strerror(errno));
        if (k <= 0)
            break;
        got += (size_t)k;
    }
    if (rc) {
        free(p);
        goto close_file;
    }
    p[got] = 0;
    *out = p;
    *n = got;
close_file:
    model_file_close(&f);
    return rc;
}
