/* tls: OpenSSL between two memory BIOs; see tls.h.
 *
 * What arrives goes into one BIO and plaintext comes out of SSL_read; what is written goes into
 * SSL_write and ciphertext is taken from the other BIO. Writes are whole, because a memory BIO
 * takes everything: no retry has to be remembered. Renegotiation is off and early data is not
 * accepted; tickets are, since they are sealed with a key of this process. */
#include "common/net/tls.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "common/base/mem.h"

#define PIECE        16384 /* of plaintext in a record, at most */
#define PSK_IDENTITY "baton"

struct tls_context {
    SSL_CTX *ssl;
    _Atomic unsigned refs;
    uint8_t psk[32];
    bool mutual;
};

struct tls {
    struct tls_context *context;
    SSL *ssl;
    BIO *in, *out; /* owned by ssl */
    bool failed;
    char error[200];
};

/* ---- contexts ---- */

static int context_create(const SSL_METHOD *method, struct tls_context **out)
{
    struct tls_context *c = mem_array(1, sizeof *c);
    if (!c)
        return STATUS_NOMEM;
    c->refs = 1;
    c->ssl = SSL_CTX_new(method);
    if (!c->ssl) {
        free(c);
        return STATUS_NOMEM;
    }
    SSL_CTX_set_min_proto_version(c->ssl, TLS1_2_VERSION);
    SSL_CTX_set_options(c->ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                    SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(c->ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_app_data(c->ssl, c);
    *out = c;
    return STATUS_OK;
}

/* Takes the oldest error, which is the cause, and forgets the others. */
static void last_error(char *out, size_t n)
{
    unsigned long e = ERR_get_error();
    const char *why = e ? ERR_reason_error_string(e) : NULL;
    snprintf(out, n, "%s", why ? why : "unknown error");
    ERR_clear_error();
}

/* ca_file NULL: peers need no certificate. */
static int context_files(const SSL_METHOD *method, const char *cert_file, const char *key_file,
                         const char *ca_file, struct tls_context **out, char *err, size_t errlen)
{
    char why[160];
    struct tls_context *c;
    const char *file = cert_file;
    ERR_clear_error();
    int rc = context_create(method, &c);
    if (rc != STATUS_OK) {
        snprintf(err, errlen, "%s", status_text(rc));
        return rc;
    }
    bool ok = SSL_CTX_use_certificate_chain_file(c->ssl, cert_file) == 1;
    if (ok) {
        file = key_file;
        ok = SSL_CTX_use_PrivateKey_file(c->ssl, key_file, SSL_FILETYPE_PEM) == 1 &&
             SSL_CTX_check_private_key(c->ssl) == 1;
    }
    if (ok && ca_file) {
        file = ca_file;
        ok = SSL_CTX_load_verify_file(c->ssl, ca_file) == 1;
    }
    if (!ok) {
        last_error(why, sizeof why);
        snprintf(err, errlen, "%s: %s", file, why);
        tls_context_put(c);
        return STATUS_INVALID;
    }
    *out = c;
    return STATUS_OK;
}

int tls_context_server(const char *cert_file, const char *key_file, struct tls_context **out,
                       char *err, size_t errlen)
{
    return context_files(TLS_server_method(), cert_file, key_file, NULL, out, err, errlen);
}

int tls_context_mutual(const char *cert_file, const char *key_file, const char *ca_file,
                       struct tls_context **out, char *err, size_t errlen)
{
    struct tls_context *c;
    TRY(context_files(TLS_method(), cert_file, key_file, ca_file, &c, err, errlen));
    c->mutual = true;
    SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION);
    SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_num_tickets(c->ssl, 0); /* every connection shows its certificate */
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    *out = c;
    return STATUS_OK;
}

static SSL_SESSION *psk_session(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const struct tls_context *c = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    SSL_SESSION *s = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    if (s && cipher && SSL_SESSION_set1_master_key(s, c->psk, sizeof c->psk) &&
        SSL_SESSION_set_cipher(s, cipher) && SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int psk_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_len,
                   SSL_SESSION **out)
{
    *id = (const unsigned char *)PSK_IDENTITY;
    *id_len = strlen(PSK_IDENTITY);
    *out = psk_session(ssl);
    return *out != NULL;
}

static int psk_find(SSL *ssl, const unsigned char *id, size_t id_len, SSL_SESSION **out)
{
    bool ours = id_len == strlen(PSK_IDENTITY) && memcmp(id, PSK_IDENTITY, id_len) == 0;
    *out = ours ? psk_session(ssl) : NULL;
    return *out != NULL || !ours;
}

int tls_context_psk(const uint8_t key[32], struct tls_context **out)
{
    struct tls_context *c;
    TRY(context_create(TLS_method(), &c));
    memcpy(c->psk, key, sizeof c->psk);
    SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION);
    SSL_CTX_set_psk_use_session_callback(c->ssl, psk_use);
    SSL_CTX_set_psk_find_session_callback(c->ssl, psk_find);
    SSL_CTX_set_num_tickets(c->ssl, 0);
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    if (SSL_CTX_set_ciphersuites(c->ssl, "TLS_AES_128_GCM_SHA256") != 1) {
        tls_context_put(c);
        return STATUS_UNSUPPORTED;
    }
    *out = c;
    return STATUS_OK;
}

struct tls_context *tls_context_get(struct tls_context *c)
{
    if (c)
        atomic_fetch_add(&c->refs, 1);
    return c;
}

void tls_context_put(struct tls_context *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    SSL_CTX_free(c->ssl);
    OPENSSL_cleanse(c->psk, sizeof c->psk);
    free(c);
}

/* ---- connections ---- */

int tls_create(struct tls_context *c, bool server, struct tls **out)
{
    struct tls *t = mem_array(1, sizeof *t);
    if (!t)
        return STATUS_NOMEM;
    t->ssl = SSL_new(c->ssl);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    if (!t->ssl || !t->in || !t->out) {
        SSL_free(t->ssl);
        BIO_free(t->in);
        BIO_free(t->out);
        free(t);
        return STATUS_NOMEM;
    }
    SSL_set_bio(t->ssl, t->in, t->out);
    if (server)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
    t->context = tls_context_get(c);
    *out = t;
    return STATUS_OK;
}

void tls_destroy(struct tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    tls_context_put(t->context);
    free(t);
}

bool tls_ready(const struct tls *t)
{
    return SSL_is_init_finished(t->ssl);
}

const char *tls_error(const struct tls *t)
{
    return t->error;
}

bool tls_is_mutual(const struct tls *t)
{
    return t->context->mutual;
}

static int fail(struct tls *t)
{
    char why[120];
    long verified = SSL_get_verify_result(t->ssl);
    t->failed = true;
    last_error(why, sizeof why);
    snprintf(t->error, sizeof t->error, "%s%s%s", why, verified == X509_V_OK ? "" : ": ",
             verified == X509_V_OK ? "" : X509_verify_cert_error_string(verified));
    return STATUS_AUTH;
}

/* What a call that did not succeed means: 0 to wait for more, or an error. */
static int reason(struct tls *t, int rc)
{
    switch (SSL_get_error(t->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return STATUS_OK;
    case SSL_ERROR_ZERO_RETURN:
        return STATUS_CLOSED;
    default:
        return fail(t);
    }
}

static int handshake(struct tls *t)
{
    ERR_clear_error();
    int rc = SSL_is_init_finished(t->ssl) ? 1 : SSL_do_handshake(t->ssl);
    return rc == 1 ? STATUS_OK : reason(t, rc);
}

int tls_feed(struct tls *t, const void *p, size_t n, struct buf *plain)
{
    size_t written;
    if (t->failed)
        return STATUS_AUTH;
    if (BIO_write_ex(t->in, p, n, &written) != 1 || written != n)
        return STATUS_NOMEM;
    TRY(handshake(t));
    while (SSL_is_init_finished(t->ssl)) {
        char *to = buf_reserve(plain, PIECE);
        size_t got = 0;
        if (!to)
            return STATUS_NOMEM;
        ERR_clear_error();
        int rc = SSL_read_ex(t->ssl, to, PIECE, &got);
        if (rc != 1)
            return reason(t, rc);
        plain->len += got;
    }
    return STATUS_OK;
}

static int take_out(struct tls *t, struct buf *sealed)
{
    for (size_t n; (n = BIO_ctrl_pending(t->out)) > 0;) {
        char *to = buf_reserve(sealed, n);
        int got = to ? BIO_read(t->out, to, (int)n) : -1;
        if (got <= 0)
            return STATUS_NOMEM;
        sealed->len += (size_t)got;
    }
    return STATUS_OK;
}

int tls_seal(struct tls *t, struct buf *plain, struct buf *sealed)
{
    int status = t->failed ? STATUS_AUTH : handshake(t);
    size_t at = 0;
    while (status == STATUS_OK && SSL_is_init_finished(t->ssl) && at < plain->len) {
        size_t n = plain->len - at < PIECE ? plain->len - at : PIECE, done = 0;
        ERR_clear_error();
        int rc = SSL_write_ex(t->ssl, plain->data + at, n, &done);
        if (rc != 1) {
            status = reason(t, rc);
            break;
        }
        at += done;
    }
    buf_consume(plain, at);
    TRY(take_out(t, sealed)); /* an alert is sent also when it failed */
    return status;
}

void tls_goodbye(struct tls *t)
{
    ERR_clear_error();
    if (!t->failed && SSL_is_init_finished(t->ssl))
        (void)SSL_shutdown(t->ssl); /* close_notify goes to `out`; the peer's is not waited for */
}
