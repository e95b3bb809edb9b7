/* fault: named points at which tests let this process fail, at a moment that they choose.
 *
 * Nothing happens unless the environment arms it when the process starts (fault_arm):
 *
 *   BATON_FAULT=[NAME/]POINT[@FIRST[+EVERY]]=ACTION[:ARG],…     or     BATON_FAULT=@FILE
 *
 *   NAME    only in the process of this name ("decoded-1")
 *   POINT   see docs/HACKING.md; "prefill.layer", "HANDOFF.sent", …
 *   FIRST   at which hit, from 1 on (1); with EVERY again after each so many hits
 *   ACTION  kill   SIGKILL to itself          stop      SIGSTOP to itself, until a SIGCONT
 *           exit   ends at once, status 1     delay:MS  sleeps
 *           drop, corrupt, refuse, fail       what the point makes of them, see there
 *           set:N  the point takes N instead of its own number
 *
 * The second form reads the entries from FILE, and again whenever FILE changes: hits are then
 * counted from there. Every action is logged. Unarmed, a point costs one relaxed load. */
#ifndef BATON_BASE_FAULT_H
#define BATON_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum fault_action { FAULT_NONE, FAULT_DROP, FAULT_CORRUPT, FAULT_REFUSE, FAULT_FAIL };

extern _Atomic bool fault_armed;

/* Reads BATON_FAULT. STATUS_INVALID, with a line in err, when it cannot be understood. */
int fault_arm(char *err, size_t errlen) WARN_UNUSED;
/* The same from a string; NULL disarms. */
int fault_arm_text(const char *text, char *err, size_t errlen) WARN_UNUSED;

enum fault_action fault_hit(const char *point, const char *suffix);
uint32_t fault_hit_number(const char *point, uint32_t otherwise);

/* This point is reached. Kill, stop, exit and delay happen inside; the rest is the caller's. */
static inline enum fault_action fault(const char *point)
{
    return atomic_load_explicit(&fault_armed, memory_order_relaxed) ? fault_hit(point, "")
                                                                    : FAULT_NONE;
}
/* A message of this name ("HANDOFF") is about to be sent, or was received: "HANDOFF.sent". */
static inline enum fault_action fault_message(const char *name, const char *what)
{
    return atomic_load_explicit(&fault_armed, memory_order_relaxed) ? fault_hit(name, what)
                                                                    : FAULT_NONE;
}
/* A number that tests may replace (set:N). */
static inline uint32_t fault_number(const char *point, uint32_t otherwise)
{
    return atomic_load_explicit(&fault_armed, memory_order_relaxed)
               ? fault_hit_number(point, otherwise)
               : otherwise;
}

#endif
