/* status: every error that Baton can report.
 *
 * A function that can fail returns int: 0 (STATUS_OK) or one of the negative codes below. Whoever
 * first decides on the error logs it, with the details; callers pass the code on silently.
 * The table is the one source for the code, its name, its text and the HTTP status it maps to. */
#ifndef BATON_BASE_STATUS_H
#define BATON_BASE_STATUS_H

/*      name               code  HTTP  text */
#define STATUS_TABLE(X)                                                                            \
    X(STATUS_OK, 0, 200, "ok")                                                                     \
    X(STATUS_NOMEM, -1, 503, "out of memory")                                                      \
    X(STATUS_INVALID, -2, 400, "invalid argument")                                                 \
    X(STATUS_FORMAT, -3, 400, "malformed data")                                                    \
    X(STATUS_UNSUPPORTED, -4, 400, "not supported")                                                \
    X(STATUS_RANGE, -5, 400, "value out of range")                                                 \
    X(STATUS_LIMIT, -6, 413, "limit exceeded")                                                     \
    X(STATUS_NOTFOUND, -7, 404, "not found")                                                       \
    X(STATUS_EXISTS, -8, 409, "already exists")                                                    \
    X(STATUS_AGAIN, -9, 503, "not now, try again")                                                 \
    X(STATUS_FULL, -10, 429, "no capacity left")                                                   \
    X(STATUS_TIMEOUT, -11, 504, "timed out")                                                       \
    X(STATUS_CANCELED, -12, 499, "canceled")                                                       \
    X(STATUS_CLOSED, -13, 502, "connection closed")                                                \
    X(STATUS_IO, -14, 500, "input/output error")                                                   \
    X(STATUS_AUTH, -15, 401, "not authorised")                                                     \
    X(STATUS_MISMATCH, -16, 502, "peers do not match")                                             \
    X(STATUS_CORRUPT, -17, 502, "checksum mismatch")                                               \
    X(STATUS_UNAVAILABLE, -18, 503, "no worker available")                                         \
    X(STATUS_INTERNAL, -19, 500, "internal error")

enum status {
#define STATUS_ENUM(name, code, http, text) name = (code),
    STATUS_TABLE(STATUS_ENUM)
#undef STATUS_ENUM
};

/* Name of the code ("STATUS_NOMEM"), its text, its HTTP status. Unknown codes give
 * "STATUS_UNKNOWN", "unknown error" and 500. The strings are static. */
const char *status_name(int code);
const char *status_text(int code);
int status_http(int code);
/* The closest code for an errno value (positive). */
int status_from_errno(int err);

#define WARN_UNUSED __attribute__((warn_unused_result))

/* Pass an error on: returns from the calling function when expr is not STATUS_OK. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        int try_rc_ = (expr);                                                                      \
        if (try_rc_ != 0)                                                                          \
            return try_rc_;                                                                        \
    } while (0)

#endif
