/* service: datagrams to $NOTIFY_SOCKET, descriptors from LISTEN_FDS_START on, files below
 * $CREDENTIALS_DIRECTORY; see service.h.
 *
 * The protocol is a few lines and stable by promise, so there is no need for libsystemd. Messages
 * are sent without waiting: a manager that does not read loses them, the daemon goes on. */
#include "common/net/service.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

#define LISTEN_FDS_START 3
#define LISTEN_FDS_MAX   16
#define FEEDS_PER_LIMIT  4

static struct {
    int notify; /* -1: nobody listens */
    struct sockaddr_un address;
    socklen_t address_len;
    int n_sockets;
    struct {
        int fd;
        char name[64];
    } sockets[LISTEN_FDS_MAX];
    char credentials[256];
    struct service_dog dog;
    bool ready;
} svc = {.notify = -1};

/* The value of NAME, when it is meant for this process: NAME_PID-like variables name another one
 * after a fork of the manager's child. */
static const char *for_us(const char *name, const char *pid_name)
{
    const char *pid = getenv(pid_name), *value = getenv(name);
    if (!value || !*value || (pid && strtol(pid, NULL, 10) != getpid()))
        return NULL;
    return value;
}

static void open_notify(const char *path)
{
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof svc.address.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    svc.address.sun_family = AF_UNIX;
    memcpy(svc.address.sun_path, path, n);
    if (path[0] == '@')
        svc.address.sun_path[0] = 0; /* an abstract name */
    svc.address_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    svc.notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void take_sockets(void)
{
    const char *count = getenv("LISTEN_PID") ? for_us("LISTEN_FDS", "LISTEN_PID") : NULL;
    const char *names = getenv("LISTEN_FDNAMES");
    long n = count ? strtol(count, NULL, 10) : 0;
    for (int i = 0; i < n && i < LISTEN_FDS_MAX; i++) {
        size_t len = names ? strcspn(names, ":") : 0;
        int fd = LISTEN_FDS_START + i, type = 0;
        socklen_t size = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            svc.sockets[svc.n_sockets].fd = fd;
            snprintf(svc.sockets[svc.n_sockets++].name, sizeof svc.sockets[0].name, "%.*s",
                     (int)len, names ? names : "");
        }
        if (names)
            names += len + (names[len] == ':');
    }
}

/* Standard error is the journal when the manager says so of this very file. */
static bool stderr_is_journal(void)
{
    const char *named = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;
    return named && sscanf(named, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
           st.st_dev == dev && st.st_ino == ino;
}

void service_init(void)
{
    const char *limit = for_us("WATCHDOG_USEC", "WATCHDOG_PID");
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    open_notify(getenv("NOTIFY_SOCKET"));
    take_sockets();
    svc.dog.limit_ms = limit ? strtoull(limit, NULL, 10) / 1000 : 0;
    snprintf(svc.credentials, sizeof svc.credentials, "%s", credentials ? credentials : "");
    log_set_journal(stderr_is_journal());
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
}

static void notify(const char *text, size_t n)
{
    if (svc.notify < 0)
        return;
    if (sendto(svc.notify, text, n, MSG_NOSIGNAL, (struct sockaddr *)&svc.address,
               svc.address_len) < 0 &&
        errno != EAGAIN)
        log_debug("service manager: %s", strerror(errno));
}

/* first, then STATUS= with the formatted text; line breaks would begin another variable. */
static void notify_status(const char *first, const char *fmt, va_list ap)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "%sSTATUS=", first), at = n;
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    for (char *p = text + at; *p; p++) {
        if ((unsigned char)*p < 0x20)
            *p = ' ';
    }
    notify(text, strlen(text));
}

void service_ready(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    notify_status("READY=1\n", fmt, ap);
    va_end(ap);
    svc.ready = true;
}

void service_status(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    notify_status("", fmt, ap);
    va_end(ap);
}

void service_starting(uint64_t ms)
{
    char text[64];
    int n = snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)ms * 1000);
    notify(text, (size_t)n);
}

void service_reloading(void)
{
    char text[96];
    int n = snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu",
                     (unsigned long long)(clock_ns() / 1000));
    if (svc.ready) /* while it starts there is nothing to come back to */
        notify(text, (size_t)n);
}

void service_stopping(void)
{
    static const char text[] = "STOPPING=1\nSTATUS=draining";
    notify(text, sizeof text - 1);
}

bool service_dog_due(struct service_dog *d, uint64_t now_ms, uint64_t progress, bool busy)
{
    if (d->limit_ms == 0)
        return false;
    if (d->fed && now_ms - d->fed_ms < d->limit_ms / FEEDS_PER_LIMIT)
        return false;
    if (d->fed && busy && progress == d->progress)
        return false;
    d->fed = true;
    d->fed_ms = now_ms;
    d->progress = progress;
    return true;
}

void service_watchdog(uint64_t now_ms, uint64_t progress, bool busy)
{
    if (service_dog_due(&svc.dog, now_ms, progress, busy))
        notify("WATCHDOG=1", 10);
}

int service_socket(const char *name)
{
    for (int exact = 1; exact >= 0; exact--) {
        for (int i = 0; i < svc.n_sockets; i++) {
            const char *its = svc.sockets[i].name;
            bool unnamed = *its == 0 || strcmp(its, "unknown") == 0;
            int fd = svc.sockets[i].fd;
            if (fd >= 0 && (exact ? strcmp(its, name) == 0 : unnamed)) {
                svc.sockets[i].fd = -1;
                return fd;
            }
        }
    }
    return -1;
}

bool service_credential(const char *name, char *out, size_t n)
{
    struct stat st;
    if (!svc.credentials[0])
        return false;
    int len = snprintf(out, n, "%s/%s", svc.credentials, name);
    return len > 0 && (size_t)len < n && stat(out, &st) == 0;
}

const char *service_secret(const char *configured, const char *credential, char *out, size_t n)
{
    if (configured && *configured)
        return configured;
    return service_credential(credential, out, n) ? out : NULL;
}
