/* service: what a service manager and a daemon say to each other, by systemd's documented protocol
 * (sd_notify(3), sd_listen_fds(3), systemd.exec(5) "CREDENTIALS"). Everything does nothing when the
 * process was not started by one.
 *
 * The watchdog is fed by progress, not by being alive (R9): a worker whose engine has work and
 * computes nothing is as hung as one whose loop stands still, and is restarted like it. */
#ifndef BATON_NET_SERVICE_H
#define BATON_NET_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Reads what the manager put into the environment, and writes log lines for the journal where they
 * go there; once, before threads are started. */
void service_init(void);

/* The process is usable; what it has to say in `systemctl status`. Later calls change the text. */
void service_ready(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Only the text: why it is not usable yet. */
void service_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Start-up goes on: the manager's time limit counts from now, for ms. */
void service_starting(uint64_t ms);
/* Settings are being read again; service_ready ends it. */
void service_reloading(void);
void service_stopping(void);

/* One round of the watchdog; call it some times a second. progress counts what is done, busy says
 * that there is something to do: with work and without progress the watchdog is left hungry. */
void service_watchdog(uint64_t now_ms, uint64_t progress, bool busy);

/* The rule by itself, for tests. limit_ms 0: there is no watchdog. */
struct service_dog {
    uint64_t limit_ms, fed_ms, progress;
    bool fed;
};
bool service_dog_due(struct service_dog *d, uint64_t now_ms, uint64_t progress, bool busy);

/* The listening socket that the manager opened under this name, else the first one that has no name
 * of its own; -1 when there is none. The caller owns the descriptor; each is given once. */
int service_socket(const char *name);

/* The path of a credential of this name in out, when the manager provided one. */
bool service_credential(const char *name, char *out, size_t n);
/* Where a secret is: the configured path, else the credential of that name (its path in out), else
 * NULL. */
const char *service_secret(const char *configured, const char *credential, char *out, size_t n);

#endif
