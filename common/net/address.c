/* address: parsing and printing of "host:port"; see address.h. */
#include "common/net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(char *err, size_t errlen, const char *text, const char *why)
{
    snprintf(err, errlen, "address \"%.100s\": %s", text, why);
    return STATUS_INVALID;
}

int address_split(const char *text, struct address_parts *out, char *err, size_t errlen)
{
    struct address_parts a;
    const char *colon = strrchr(text, ':');
    if (!colon)
        return refuse(err, errlen, text, "a port is missing, write host:port");
    const char *host = text, *end = colon;
    if (*text == '[') {
        if (colon == text || colon[-1] != ']')
            return refuse(err, errlen, text, "write an IPv6 address as [address]:port");
        host++;
        end--;
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return refuse(err, errlen, text, "write an IPv6 address as [address]:port");
    }
    size_t n = (size_t)(end - host);
    if (n == 0)
        return refuse(err, errlen, text,
                      "the host is missing (127.0.0.1 for this machine only, 0.0.0.0 for all "
                      "interfaces)");
    if (n >= sizeof a.host)
        return refuse(err, errlen, text, "the host is too long");
    memcpy(a.host, host, n);
    a.host[n] = 0;
    const char *digits = colon + 1;
    size_t m = strspn(digits, "0123456789");
    if (m == 0 || m > 5 || digits[m] || strtoul(digits, NULL, 10) > 65535)
        return refuse(err, errlen, text, "the port must be a number from 0 to 65535");
    snprintf(a.port, sizeof a.port, "%lu", strtoul(digits, NULL, 10));
    *out = a;
    return STATUS_OK;
}

int address_numeric(const struct address_parts *a, struct sockaddr_storage *out)
{
    struct sockaddr_storage ss;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&ss;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&ss;
    const char *host = strcmp(a->host, "localhost") == 0 ? "127.0.0.1" : a->host;
    uint16_t port = htons((uint16_t)strtoul(a->port, NULL, 10));

    memset(&ss, 0, sizeof ss);
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = port;
    } else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = port;
    } else {
        return STATUS_NOTFOUND;
    }
    *out = ss;
    return STATUS_OK;
}

int address_resolve(const char *text, struct sockaddr_storage *out, char *err, size_t errlen)
{
    struct address_parts a;
    TRY(address_split(text, &a, err, errlen));
    if (address_numeric(&a, out) == STATUS_OK)
        return STATUS_OK;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(a.host, a.port, &hints, &list);
    if (rc != 0)
        return refuse(err, errlen, text, gai_strerror(rc));
    memset(out, 0, sizeof *out);
    memcpy(out, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return STATUS_OK;
}

bool address_is_loopback(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    if (a->ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    }
    return false;
}

void address_format(const struct sockaddr_storage *a, char out[ADDRESS_TEXT_MAX])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(out, ADDRESS_TEXT_MAX, "%s:%u", host, ntohs(v4->sin_port));
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(out, ADDRESS_TEXT_MAX, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        snprintf(out, ADDRESS_TEXT_MAX, "unknown");
    }
}
