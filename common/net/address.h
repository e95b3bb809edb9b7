/* address: "host:port" as users and DNS write it, to and from socket addresses.
 *
 * host is a name, an IPv4 address or an IPv6 address in brackets; port is 0..65535. A missing host
 * (":8080") is refused, so that nobody listens on every interface by accident: write 0.0.0.0. */
#ifndef BATON_NET_ADDRESS_H
#define BATON_NET_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/status.h"

#define ADDRESS_TEXT_MAX 80

struct address_parts {
    char host[256]; /* without brackets */
    char port[8];
};
/* err: one line that quotes the text. */
int address_split(const char *text, struct address_parts *out, char *err,
                  size_t errlen) WARN_UNUSED;
/* Numeric hosts, and "localhost" (127.0.0.1) without asking a resolver; STATUS_NOTFOUND for other
 * names. */
int address_numeric(const struct address_parts *a, struct sockaddr_storage *out) WARN_UNUSED;
/* For listening, at start-up: numeric or a name that is resolved now (blocking). */
int address_resolve(const char *text, struct sockaddr_storage *out, char *err,
                    size_t errlen) WARN_UNUSED;
bool address_is_loopback(const struct sockaddr_storage *a);
/* "127.0.0.1:8080", "[::1]:8080" */
void address_format(const struct sockaddr_storage *a, char out[ADDRESS_TEXT_MAX]);

#endif
