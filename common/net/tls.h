/* tls: TLS 1.2 and 1.3 over any stream (OpenSSL): a filter that is fed with what arrives and hands
 * out what is to be sent; it does no I/O itself. */
#ifndef BATON_NET_TLS_H
#define BATON_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

/* What connections have in common; counted, so that a new one can replace it while old connections
 * go on. */
struct tls_context;
/* For a server with a certificate chain and its private key, both PEM. err: one line. */
int tls_context_server(const char *cert_file, const char *key_file, struct tls_context **out,
                       char *err, size_t errlen) WARN_UNUSED;
/* For both sides of a link that share a secret of 32 bytes: TLS 1.3 with this pre-shared key and a
 * fresh Diffie-Hellman exchange; no certificates. */
int tls_context_psk(const uint8_t key[32], struct tls_context **out) WARN_UNUSED;
/* For both sides of a link between daemons that have certificates: TLS 1.3; each shows its own
 * chain and wants one from the peer that leads to an authority of ca_file, is valid now, and may be
 * used for that side (extended key usage). Names are not compared: who has such a certificate
 * belongs to the cluster. All PEM. */
int tls_context_mutual(const char *cert_file, const char *key_file, const char *ca_file,
                       struct tls_context **out, char *err, size_t errlen) WARN_UNUSED;
struct tls_context *tls_context_get(struct tls_context *c); /* NULL is fine, here and below */
void tls_context_put(struct tls_context *c);

struct tls;
/* One connection's side; keeps the context. */
int tls_create(struct tls_context *c, bool server, struct tls **out) WARN_UNUSED;
void tls_destroy(struct tls *t); /* NULL is fine */
/* n bytes arrived: what they say is appended to plain. STATUS_CLOSED: the peer has said goodbye
 * (what came before is in plain). Other errors: the connection is of no use, tls_error says why.
 * There may be something to send after it in any case. */
int tls_feed(struct tls *t, const void *p, size_t n, struct buf *plain) WARN_UNUSED;
/* Turns plain into what is to be sent, appended to sealed; before the handshake is done plain
 * stays, and only the handshake's own bytes come. */
int tls_seal(struct tls *t, struct buf *plain, struct buf *sealed) WARN_UNUSED;
/* The next tls_seal says goodbye to the peer behind everything else. */
void tls_goodbye(struct tls *t);
bool tls_ready(const struct tls *t); /* the handshake is done */
const char *tls_error(const struct tls *t);
bool tls_is_mutual(const struct tls *t); /* its context is tls_context_mutual's */

#endif
