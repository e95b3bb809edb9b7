/* mac: HMAC-SHA256 (OpenSSL's EVP_MAC) under the cluster key, and the key file.
 *
 * The label and the data are authenticated as label, one zero byte, data: no two pairs of label and
 * data give the same bytes. Failing to compute a MAC (out of memory, a crippled OpenSSL) aborts:
 * going on would mean to accept or to send something unauthenticated. */
#include "common/net/mac.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/net/address.h"

#define KEY_MIN 16

static int key_refuse(FILE *f, char *err, size_t errlen, const char *path, const char *why)
{
    snprintf(err, errlen, "%s: %s", path, why);
    if (f)
        fclose(f);
    return STATUS_INVALID;
}

int mac_key_load(const char *path, struct mac_key *out, char *err, size_t errlen)
{
    struct mac_key k = {.n = 0};
    struct stat st;
    uint8_t text[sizeof k.key + 64];

    if (!path || !*path) {
        *out = k;
        return STATUS_OK;
    }
    FILE *f = fopen(path, "rb");
    if (!f)
        return key_refuse(f, err, errlen, path, strerror(errno));
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode))
        return key_refuse(f, err, errlen, path, "the cluster key must be a regular file");
    size_t n = fread(text, 1, sizeof text, f);
    if (ferror(f))
        return key_refuse(f, err, errlen, path, "cannot be read");
    while (n && isspace(text[n - 1]))
        n--;
    if (n < KEY_MIN)
        return key_refuse(f, err, errlen, path, "the cluster key needs at least 16 bytes");
    if (n > sizeof k.key)
        return key_refuse(f, err, errlen, path, "the cluster key has more than 64 bytes");
    fclose(f);
    if (st.st_mode & (S_IROTH | S_IWOTH))
        log_warn("%s: other users can read or write the cluster key (mode %03o); chmod 600 it",
                 path, (unsigned)st.st_mode & 0777u);
    memcpy(k.key, text, n);
    k.n = (uint32_t)n;
    OPENSSL_cleanse(text, sizeof text);
    *out = k;
    return STATUS_OK;
}

void mac_sign(const struct mac_key *k, const char *label, const void *data, size_t n,
              uint8_t out[32])
{
    if (k->n == 0) {
        memset(out, 0, 32);
        return;
    }
    EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                 OSSL_PARAM_construct_end()};
    size_t len = 0;
    bool ok = ctx && EVP_MAC_init(ctx, k->key, k->n, params) &&
              EVP_MAC_update(ctx, (const uint8_t *)label, strlen(label) + 1) &&
              EVP_MAC_update(ctx, data, n) && EVP_MAC_final(ctx, out, &len, 32) && len == 32;
    EVP_MAC_CTX_free(ctx);
    EVP_MAC_free(hmac);
    ASSERT_MSG(ok, "HMAC-SHA256 is not available");
}

bool mac_equal(const uint8_t a[32], const uint8_t b[32])
{
    return CRYPTO_memcmp(a, b, 32) == 0;
}

static uint8_t *put_le(uint8_t *p, uint64_t v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        *p++ = (uint8_t)(v >> 8 * i);
    return p;
}

void mac_reserve(const struct mac_key *k, uint64_t router, uint64_t counter, uint32_t attempt,
                 uint64_t prefill, uint64_t decode, uint8_t out[32])
{
    uint8_t data[36];
    uint8_t *p = put_le(data, router, 8);
    p = put_le(p, counter, 8);
    p = put_le(p, attempt, 4);
    p = put_le(p, prefill, 8);
    p = put_le(p, decode, 8);
    mac_sign(k, "reserve", data, (size_t)(p - data), out);
}

int mac_check_listen(const struct mac_key *k, const char *address, char *err, size_t errlen)
{
    struct sockaddr_storage ss;
    TRY(address_resolve(address, &ss, err, errlen));
    if (k->n > 0 || address_is_loopback(&ss))
        return STATUS_OK;
    snprintf(err, errlen,
             "address \"%.100s\" is reachable from other machines: set cluster_key_file, or listen "
             "on 127.0.0.1",
             address);
    return STATUS_AUTH;
}
