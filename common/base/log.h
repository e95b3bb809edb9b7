/* log: one line per event: time, level, program, file, message, and which request it is about.
 *
 *   2026-11-29T19:20:01.123Z INFO  decoded-1 ticket.c: ticket 4f1c… sealed (request 7b2e…)
 *   {"time":"2026-11-29T19:20:01.123Z","level":"info","name":"decoded-1","file":"ticket.c",
 *    "seq":"4f1c…","request_id":"7b2e…","message":"ticket 4f1c… sealed"}        (one line)
 *
 * Lines go to standard error, or to the journal's own socket, with the same as fields. JSON is
 * valid, and UTF-8, whatever is in a message.
 *
 * Thread-safe: a line is formatted on the stack (at most 2 KiB, longer ones end in "…") and written
 * by one system call. A line that cannot be written (full disk, closed pipe) is dropped and
 * counted: logging never blocks serving and never fails. LOG_TRACE lines carry CLOCK_MONOTONIC
 * microseconds, so that traces of several processes on one machine can be put side by side. */
#ifndef BATON_BASE_LOG_H
#define BATON_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* Opens /dev/null as standard input, output or error where the process was started without: else
 * the first file or connection would take the number, and log lines would go into it. Call it first
 * of all. */
void log_claim_stdio(void);
/* Name of the process in the lines ("decoded-1"); copied, cut at 31 bytes. */
void log_set_name(const char *name);
const char *log_name(void);
void log_set_level(enum log_level level);
/* Text is for people; JSON has one object a line; JOURNALD sends fields to the journal's socket. */
enum log_format { LOG_TEXT, LOG_JSON, LOG_JOURNALD };
void log_set_format(enum log_format f);
/* Standard error is the journal: text then goes to its socket too. Where that cannot be reached,
 * here and in LOG_JOURNALD, lines are "<3>program file: message" on standard error, which the
 * journal takes as well: 3 is syslog's number of the level. */
void log_set_journal(bool on);
/* The journal's socket, for tests; the default is systemd's. Before log_set_format. */
void log_set_journal_socket(const char *path);
/* "error", "warn", "info", "debug" or "trace" -> level; STATUS_INVALID otherwise. */
int log_level_parse(const char *text, enum log_level *level);
bool log_enabled(enum log_level level);
/* Lines that could not be written since the start. */
uint64_t log_dropped(void);

/* The request that a line is about; each part may be NULL or "" where it is not known. */
struct log_about {
    const char *seq;     /* the cluster's name of the sequence, the same in all its processes */
    const char *request; /* the client's name of the request: its id, or "id traceparent" */
};

void log_write(enum log_level level, const char *file, struct log_about about, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#define LOG_AT(level, about, ...)                                                                  \
    do {                                                                                           \
        if (log_enabled(level))                                                                    \
            log_write(level, __FILE__, about, __VA_ARGS__);                                        \
    } while (0)
#define LOG_NOTHING    ((struct log_about){0})
#define log_error(...) LOG_AT(LOG_ERROR, LOG_NOTHING, __VA_ARGS__)
#define log_warn(...)  LOG_AT(LOG_WARN, LOG_NOTHING, __VA_ARGS__)
#define log_info(...)  LOG_AT(LOG_INFO, LOG_NOTHING, __VA_ARGS__)
#define log_debug(...) LOG_AT(LOG_DEBUG, LOG_NOTHING, __VA_ARGS__)
#define log_trace(...) LOG_AT(LOG_TRACE, LOG_NOTHING, __VA_ARGS__)
/* The same with a struct log_about first, which is made only when the line is written. */
#define log_error_about(about, ...) LOG_AT(LOG_ERROR, about, __VA_ARGS__)
#define log_warn_about(about, ...)  LOG_AT(LOG_WARN, about, __VA_ARGS__)
#define log_info_about(about, ...)  LOG_AT(LOG_INFO, about, __VA_ARGS__)
#define log_debug_about(about, ...) LOG_AT(LOG_DEBUG, about, __VA_ARGS__)
#define log_trace_about(about, ...) LOG_AT(LOG_TRACE, about, __VA_ARGS__)

#endif
