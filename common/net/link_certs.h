/* link_certs: where certificates of the links between daemons come from: files that settings name,
 * else credentials of the service manager (baton.link_cert, baton.link_key, baton.link_ca). */
#ifndef BATON_NET_LINK_CERTS_H
#define BATON_NET_LINK_CERTS_H

#include "common/net/tls.h"

/* *out is NULL when there is none of the three. STATUS_INVALID when one is missing, or is bad. */
int link_certs_load(const char *cert_file, const char *key_file, const char *ca_file,
                    struct tls_context **out, char *err, size_t errlen) WARN_UNUSED;

#endif
