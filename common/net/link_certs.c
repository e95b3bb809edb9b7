/* link_certs: see link_certs.h. */
#include "common/net/link_certs.h"

#include <limits.h>
#include <stdio.h>

#include "common/net/service.h"

int link_certs_load(const char *cert_file, const char *key_file, const char *ca_file,
                    struct tls_context **out, char *err, size_t errlen)
{
    char path[3][PATH_MAX];
    const char *cert = service_secret(cert_file, "baton.link_cert", path[0], sizeof path[0]);
    const char *key = service_secret(key_file, "baton.link_key", path[1], sizeof path[1]);
    const char *ca = service_secret(ca_file, "baton.link_ca", path[2], sizeof path[2]);
    *out = NULL;
    if (!cert && !key && !ca)
        return STATUS_OK;
    if (cert && key && ca)
        return tls_context_mutual(cert, key, ca, out, err, errlen);
    snprintf(err, errlen,
             "link_cert_file, link_key_file and link_ca_file go together; %s is not set",
             !cert  ? "link_cert_file"
             : !key ? "link_key_file"
                    : "link_ca_file");
    return STATUS_INVALID;
}
