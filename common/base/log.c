/* log: formats a line on the stack and hands it to the kernel in one call, so that lines of several
 * threads, and of several processes that append to one file, never mix.
 *
 * A message is formatted and cleaned first (no control characters), then dressed as the format
 * wants it. In JSON it comes last, so that a long one is cut without harm to the other fields. */
#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/status.h"

#define MESSAGE_MAX    2048
#define LINE_MAX       4096 /* a pipe takes so much at once: escapes lengthen a message */
#define FIELD_MAX      256
#define JOURNAL_SOCKET "/run/systemd/journal/socket"

static char process_name[32] = "baton";
static _Atomic int log_level_now = LOG_INFO;
static _Atomic uint64_t log_lost;
static _Atomic int format_now = LOG_TEXT;
static _Atomic bool stderr_is_journal;
static _Atomic int journal_fd = -1;
static const char *journal_path = JOURNAL_SOCKET;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};
static const char *const level_marks[] = {"ERROR", "WARN ", "INFO ", "DEBUG", "TRACE"};

void log_claim_stdio(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

void log_set_name(const char *name)
{
    snprintf(process_name, sizeof process_name, "%s", name);
}

/* Opened once and kept: a socket that is never closed can be used by every thread. */
static void journal_open(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (atomic_load(&journal_fd) >= 0 || strlen(journal_path) >= sizeof a.sun_path)
        return;
    memcpy(a.sun_path, journal_path, strlen(journal_path));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        atomic_store(&journal_fd, fd);
    else if (fd >= 0)
        close(fd);
}

void log_set_journal(bool on)
{
    atomic_store(&stderr_is_journal, on);
    if (on)
        journal_open();
}

void log_set_format(enum log_format f)
{
    if (f == LOG_JOURNALD)
        journal_open();
    atomic_store(&format_now, (int)f);
}

void log_set_journal_socket(const char *path)
{
    int fd = atomic_exchange(&journal_fd, -1);
    if (fd >= 0)
        close(fd);
    journal_path = path ? path : JOURNAL_SOCKET;
}

const char *log_name(void)
{
    return process_name;
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&log_level_now, (int)level, memory_order_relaxed);
}

int log_level_parse(const char *text, enum log_level *level)
{
    for (int i = 0; i <= LOG_TRACE; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *level = (enum log_level)i;
            return STATUS_OK;
        }
    }
    return STATUS_INVALID;
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level_now, memory_order_relaxed);
}

uint64_t log_dropped(void)
{
    return atomic_load(&log_lost);
}

/* A pipe or terminal that nobody reads would block the writer: what it cannot take now is lost.
 * Lines are no longer than PIPE_BUF, so where there is room at all there is room for a whole one.
 */
static bool write_line(const char *line, size_t n)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t w = 0;
    pthread_mutex_lock(&lock); /* two threads must not both find the last room */
    if (poll(&p, 1, 0) != 0) { /* errors show in the write */
        do {
            w = write(STDERR_FILENO, line, n);
        } while (w < 0 && errno == EINTR);
    }
    pthread_mutex_unlock(&lock);
    return w == (ssize_t)n;
}

/* ---- pieces ------------------------------------------------------------------------------------
 */

/* A line that is being put together; what finds no room is left out. */
struct line {
    char p[LINE_MAX];
    size_t n;
};

static void put(struct line *l, const char *s, size_t n)
{
    if (n > sizeof l->p - 1 - l->n)
        n = sizeof l->p - 1 - l->n;
    memcpy(l->p + l->n, s, n);
    l->n += n;
}

static void put_text(struct line *l, const char *s)
{
    put(l, s, strlen(s));
}

/* Bytes of the UTF-8 character at s, of which n are there; 0: it is none. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    static const struct {
        unsigned char lead, lead_end, second, second_end, bytes;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
                 {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                 {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    if (s[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (s[0] < forms[i].lead || s[0] > forms[i].lead_end)
            continue;
        if (n < forms[i].bytes || s[1] < forms[i].second || s[1] > forms[i].second_end)
            return 0;
        for (size_t k = 2; k < forms[i].bytes; k++) {
            if ((s[k] & 0xc0) != 0x80)
                return 0;
        }
        return forms[i].bytes;
    }
    return 0;
}

/* The inside of a JSON string, cut where `room` bytes of the line would not be left. */
static void put_json(struct line *l, const char *text, size_t n, size_t room)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        char piece[8];
        size_t bytes = utf8_length(s + i, n - i), m;
        if (bytes == 0)
            m = (size_t)snprintf(piece, sizeof piece, "\\ufffd");
        else if (s[i] == '"' || s[i] == '\\')
            m = (size_t)snprintf(piece, sizeof piece, "\\%c", s[i]);
        else if (s[i] < 0x20 || s[i] == 0x7f)
            m = (size_t)snprintf(piece, sizeof piece, "\\u%04x", s[i]);
        else if (bytes == 2 && s[i] == 0xc2 && s[i + 1] < 0xa0) /* control characters, too */
            m = (size_t)snprintf(piece, sizeof piece, "\\u%04x", s[i + 1]);
        else if (bytes == 3 && memcmp(s + i, "\xe2\x80", 2) == 0 && (s[i + 2] & 0xfe) == 0xa8)
            m = (size_t)snprintf(piece, sizeof piece, "\\u%04x",
                                 s[i + 2] == 0xa8 ? 0x2028 : 0x2029);
        else
            memcpy(piece, s + i, m = bytes);
        if (l->n + m + room >= sizeof l->p) {
            put_text(l, "\xe2\x80\xa6");
            return;
        }
        put(l, piece, m);
        i += bytes ? bytes : 1;
    }
}

static void put_time(struct line *l)
{
    struct timespec ts;
    struct tm tm;
    char text[40];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, sizeof text - n, ".%03ldZ", ts.tv_nsec / 1000000);
    put_text(l, text);
}

/* ---- one line ----------------------------------------------------------------------------------
 */

struct event {
    enum log_level level;
    const char *file;
    const char *message;
    size_t n;
    const char *seq;
    const char *request, *trace; /* of the client's; no terminators */
    size_t n_request, n_trace;
};

static const char priorities[] = {'3', '4', '6', '7', '7'}; /* syslog(3) */

static void put_plain(struct line *l, const struct event *e)
{
    put_text(l, process_name);
    put_text(l, " ");
    put_text(l, e->file);
    put_text(l, ": ");
    put(l, e->message, e->n);
    if (e->n_request) {
        put_text(l, " (request ");
        put(l, e->request, e->n_request);
        if (e->n_trace) {
            put_text(l, " ");
            put(l, e->trace, e->n_trace);
        }
        put_text(l, ")");
    }
}

static void put_json_field(struct line *l, const char *name, const char *s, size_t n)
{
    if (n == 0)
        return;
    put_text(l, "\"");
    put_text(l, name);
    put_text(l, "\":\"");
    put_json(l, s, n < FIELD_MAX ? n : FIELD_MAX, 0);
    put_text(l, "\",");
}

static void put_object(struct line *l, const struct event *e)
{
    put_text(l, "{\"time\":\"");
    put_time(l);
    put_text(l, "\",");
    put_json_field(l, "level", level_names[e->level], strlen(level_names[e->level]));
    put_json_field(l, "name", process_name, strlen(process_name));
    put_json_field(l, "file", e->file, strlen(e->file));
    put_json_field(l, "seq", e->seq, strlen(e->seq));
    put_json_field(l, "request_id", e->request, e->n_request);
    put_json_field(l, "traceparent", e->trace, e->n_trace);
    put_text(l, "\"message\":\"");
    put_json(l, e->message, e->n, 8);
    put_text(l, "\"}");
}

static void put_field(struct line *l, const char *name, const char *s, size_t n)
{
    if (n == 0)
        return;
    put_text(l, name);
    put(l, s, n);
    put_text(l, "\n");
}

/* systemd's journal, native protocol: NAME=value and a line end; no value of ours has one. */
static bool to_journal(int fd, const struct event *e)
{
    struct line l = {.n = 0};
    put_field(&l, "PRIORITY=", &priorities[e->level], 1);
    put_field(&l, "SYSLOG_IDENTIFIER=", process_name, strlen(process_name));
    put_field(&l, "CODE_FILE=", e->file, strlen(e->file));
    put_field(&l, "BATON_SEQ=", e->seq, strlen(e->seq));
    put_field(&l, "REQUEST_ID=", e->request, e->n_request);
    put_field(&l, "TRACEPARENT=", e->trace, e->n_trace);
    put_text(&l, "MESSAGE=");
    put_plain(&l, e);
    put_text(&l, "\n");
    return send(fd, l.p, l.n, MSG_NOSIGNAL) == (ssize_t)l.n;
}

static bool to_stderr(enum log_format format, const struct event *e)
{
    struct line l = {.n = 0};
    if (format == LOG_JSON) {
        put_object(&l, e);
    } else if (format == LOG_JOURNALD) {
        put(&l, (char[]){'<', priorities[e->level], '>'}, 3);
        put_plain(&l, e);
    } else {
        put_time(&l);
        put_text(&l, " ");
        put_text(&l, level_marks[e->level]);
        put_text(&l, " ");
        put_plain(&l, e);
    }
    l.p[l.n++] = '\n'; /* put leaves room for one byte */
    return write_line(l.p, l.n);
}

/* A message can neither forge a line nor talk to the terminal. */
static void clean(char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            s[i] = ' ';
    }
}

static size_t cut(char *s, size_t n, size_t max)
{
    if (n < max)
        return n;
    n = max - 4; /* room for the ellipsis */
    while (n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80)
        n--; /* not inside a character */
    memcpy(s + n, "\xe2\x80\xa6", 3);
    return n + 3;
}

void log_write(enum log_level level, const char *file, struct log_about about, const char *fmt, ...)
{
    char message[MESSAGE_MAX], request[FIELD_MAX];
    int saved = errno;
    const char *base = strrchr(file, '/');
    size_t n = 0;
    if (level == LOG_TRACE)
        n += (size_t)snprintf(message, sizeof message, "mono_us=%llu ",
                              (unsigned long long)(clock_ns() / 1000));
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(message + n, sizeof message - n, fmt, ap);
    va_end(ap);
    n = cut(message, m > 0 ? n + (size_t)m : n, sizeof message - 1);
    clean(message, n);
    snprintf(request, sizeof request, "%s", about.request ? about.request : "");
    clean(request, strlen(request));
    size_t id = strcspn(request, " ");
    struct event e = {.level = level,
                      .file = base ? base + 1 : file,
                      .message = message,
                      .n = n,
                      .seq = about.seq ? about.seq : "",
                      .request = request,
                      .n_request = id,
                      .trace = request[id] ? request + id + 1 : "",
                      .n_trace = request[id] ? strlen(request + id + 1) : 0};
    enum log_format format = (enum log_format)atomic_load(&format_now);
    if (format == LOG_TEXT && atomic_load(&stderr_is_journal))
        format = LOG_JOURNALD;
    int fd = atomic_load(&journal_fd);
    if (format == LOG_JOURNALD && fd >= 0 ? !to_journal(fd, &e) : !to_stderr(format, &e))
        atomic_fetch_add(&log_lost, 1);
    errno = saved;
}
