/* status: names, texts and HTTP codes of the error table in status.h. */
#include "common/base/status.h"

#include <errno.h>

const char *status_name(int code)
{
    switch (code) {
#define STATUS_CASE(name, value, http, text)                                                       \
    case value:                                                                                    \
        return #name;
        STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
    }
    return "STATUS_UNKNOWN";
}

const char *status_text(int code)
{
    switch (code) {
#define STATUS_CASE(name, value, http, text)                                                       \
    case value:                                                                                    \
        return text;
        STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown error";
}

int status_http(int code)
{
    switch (code) {
#define STATUS_CASE(name, value, http, text)                                                       \
    case value:                                                                                    \
        return http;
        STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
    }
    return 500;
}

int status_from_errno(int err)
{
    switch (err) {
    case 0:
        return STATUS_OK;
    case ENOMEM:
        return STATUS_NOMEM;
    case EINVAL:
        return STATUS_INVALID;
    case ENOENT:
        return STATUS_NOTFOUND;
    case EACCES:
    case EPERM:
        return STATUS_AUTH;
    case EEXIST:
    case EADDRINUSE:
        return STATUS_EXISTS;
    case EAGAIN:
        return STATUS_AGAIN;
    case ETIMEDOUT:
        return STATUS_TIMEOUT;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
        return STATUS_CLOSED;
    default:
        return STATUS_IO;
    }
}
