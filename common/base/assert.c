/* assert: the last words of a process whose own invariants no longer hold. */
#include "common/base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"

_Noreturn void assert_failed(const char *file, int line, const char *expr, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    log_write(LOG_ERROR, file, LOG_NOTHING, "line %d: assertion failed: %s %s", line, expr, why);
    abort();
}
