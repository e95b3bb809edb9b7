/* mac: HMAC-SHA256 under the cluster key (OpenSSL's only home in this links).
 *
 * The key file holds at least 16 bytes; blanks at the end are dropped. Without a key file the key
 * is empty: MACs are zero, and only loopback addresses may listen (mac_check_listen). */
#ifndef BATON_NET_MAC_H
#define BATON_NET_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct mac_key {
    uint8_t key[64];
    uint32_t n; /* 0: no key */
};
/* path NULL or "": no key. err: one line. */
int mac_key_load(const char *path, struct mac_key *out, char *err, size_t errlen) WARN_UNUSED;
/* 32 bytes over label | data. Zero when there is no key. */
void mac_sign(const struct mac_key *k, const char *label, const void *data, size_t n,
              uint8_t out[32]);
/* Constant time. */
bool mac_equal(const uint8_t a[32], const uint8_t b[32]);
/* R6: over (router, counter, attempt, P instance, D instance). */
void mac_reserve(const struct mac_key *k, uint64_t router, uint64_t counter, uint32_t attempt,
                 uint64_t prefill, uint64_t decode, uint8_t out[32]);
/* Whether something that trusts the cluster key may listen on "host:port": always with a key, on
 * loopback only without one (STATUS_AUTH). STATUS_INVALID for an address that does not resolve. */
int mac_check_listen(const struct mac_key *k, const char *address, char *err,
                     size_t errlen) WARN_UNUSED;

#endif
