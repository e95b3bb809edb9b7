/* api_keys: see api_keys.h. A key is hashed once and its hash compared with every line of the file,
 * each in constant time and without an early end, so the time says neither how near a guess was nor
 * which line it was near to. Hashing without salt or stretching is enough for random keys; that is
 * what docs/API.md tells how to make. */
#include "common/net/api_keys.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define LINE_BYTES 512
#define KEYS_MAX   65536
#define LIMIT_MAX  1000000000

struct api_keys {
    struct api_key *list;
    size_t n, cap;
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_hash(const char *p, unsigned char out[32])
{
    for (int i = 0; i < 32; i++, p += 2) {
        int high = hex_digit(p[0]), low = high < 0 ? -1 : hex_digit(p[1]);
        if (low < 0)
            return false;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return *p == '\0';
}

static bool is_name(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)p[i]) && !strchr("._-", p[i]))
            return false;
    }
    return n > 0 && n <= API_KEY_NAME_MAX;
}

static const char *parse_number(const char *value, uint32_t *out)
{
    char *end;
    if (*out)
        return "a limit is given twice";
    unsigned long n = isdigit((unsigned char)*value) ? strtoul(value, &end, 10) : 0;
    if (n == 0 || *end || n > LIMIT_MAX)
        return "a limit is a number from 1 to 1000000000";
    *out = (uint32_t)n;
    return NULL;
}

static const char *parse_priority(const char *value, enum api_priority *out)
{
    static const char *const names[] = {"low", "normal", "high"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = (enum api_priority)i;
            return NULL;
        }
    }
    return "a priority is low, normal or high";
}

static const char *parse_option(char *word, struct api_key *out)
{
    char *value = strchr(word, '=');
    if (!value)
        return "behind the hash there are only words of the form setting=value";
    *value++ = '\0';
    if (strcmp(word, "tenant") == 0) {
        if (!is_name(value, strlen(value)))
            return "a tenant has letters, digits, '.', '_' and '-'";
        memcpy(out->tenant, value, strlen(value) + 1);
        return NULL;
    }
    if (strcmp(word, "priority") == 0)
        return parse_priority(value, &out->limits.priority);
    if (strcmp(word, "requests_per_minute") == 0)
        return parse_number(value, &out->limits.requests_per_minute);
    if (strcmp(word, "tokens_per_minute") == 0)
        return parse_number(value, &out->limits.tokens_per_minute);
    if (strcmp(word, "concurrency") == 0)
        return parse_number(value, &out->limits.concurrency);
    return "a setting of a key is tenant, requests_per_minute, tokens_per_minute, concurrency or "
           "priority";
}

/* Takes one line without its end, and changes it; what is wrong with it, or NULL. */
static const char *parse_line(char *line, struct api_key *out)
{
    size_t n = strcspn(line, ":");
    *out = (struct api_key){.limits.priority = API_PRIORITY_NORMAL};
    if (n == 0 || n > API_KEY_NAME_MAX || line[n] != ':')
        return "not of the form name:hash";
    if (!is_name(line, n))
        return "a name has letters, digits, '.', '_' and '-'";
    memcpy(out->name, line, n);
    memcpy(out->tenant, line, n);
    char *rest = line + n + 1, *hash = strsep(&rest, " \t");
    if (!parse_hash(hash, out->hash))
        return "the hash must be a SHA-256 of 64 hexadecimal digits (not the key itself)";
    const char *wrong = NULL;
    for (char *word; !wrong && (word = strsep(&rest, " \t"));) {
        if (*word)
            wrong = parse_option(word, out);
    }
    return wrong;
}

static const char *add(struct api_keys *k, const struct api_key *key)
{
    for (size_t i = 0; i < k->n; i++) {
        if (strcmp(k->list[i].name, key->name) == 0)
            return "this name is used twice";
    }
    if (k->n == KEYS_MAX)
        return "too many keys";
    if (k->n == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 16;
        struct api_key *more = mem_resize(k->list, cap, sizeof *more);
        if (!more)
            return "out of memory";
        k->list = more;
        k->cap = cap;
    }
    k->list[k->n++] = *key;
    return NULL;
}

static const char *read_lines(struct api_keys *k, FILE *f, unsigned *line_no)
{
    char line[LINE_BYTES];
    while (fgets(line, sizeof line, f)) {
        struct api_key key;
        size_t n = strlen(line);
        ++*line_no;
        if (n == sizeof line - 1)
            return "the line is too long";
        while (n && isspace((unsigned char)line[n - 1]))
            line[--n] = '\0';
        char *p = line + strspn(line, " \t");
        if (*p == '\0' || *p == '#')
            continue;
        const char *wrong = parse_line(p, &key);
        if (!wrong)
            wrong = add(k, &key);
        if (wrong)
            return wrong;
    }
    if (ferror(f))
        return "cannot be read";
    return k->n ? NULL : "there is no key in it";
}

int api_keys_load(const char *setting, const char *path, struct api_keys **out, char *err,
                  size_t errlen)
{
    struct stat st;
    unsigned line = 0;
    if (!path || !*path) {
        *out = NULL;
        return STATUS_OK;
    }
    FILE *f = fopen(path, "r");
    if (!f) {
        snprintf(err, errlen, "%s = %s: %s", setting, path, strerror(errno));
        return STATUS_INVALID;
    }
    struct api_keys *k = mem_array(1, sizeof *k);
    const char *wrong = k ? read_lines(k, f, &line) : "out of memory";
    if (!wrong && fstat(fileno(f), &st) == 0 && (st.st_mode & S_IWOTH))
        log_warn("%s: every user can change the API keys (mode %03o)", path,
                 (unsigned)st.st_mode & 0777u);
    fclose(f);
    if (wrong) {
        snprintf(err, errlen, "%s = %s, line %u: %s", setting, path, line, wrong);
        api_keys_destroy(k);
        return STATUS_INVALID;
    }
    *out = k;
    return STATUS_OK;
}

void api_keys_destroy(struct api_keys *k)
{
    if (!k)
        return;
    free(k->list);
    free(k);
}

const struct api_key *api_keys_find(const struct api_keys *k, const char *authorization)
{
    const struct api_key *found = NULL;
    unsigned char hash[EVP_MAX_MD_SIZE];
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    const char *key = authorization + 7 + strspn(authorization + 7, " ");
    ASSERT_MSG(EVP_Digest(key, strlen(key), hash, NULL, EVP_sha256(), NULL) == 1,
               "SHA-256 is not available");
    for (size_t i = 0; i < k->n; i++) {
        if (CRYPTO_memcmp(hash, k->list[i].hash, sizeof k->list[i].hash) == 0)
            found = &k->list[i];
    }
    OPENSSL_cleanse(hash, sizeof hash);
    return found;
}

const struct api_key *api_keys_named(const struct api_keys *k, const char *name)
{
    for (size_t i = 0; i < k->n; i++) {
        if (strcmp(k->list[i].name, name) == 0)
            return &k->list[i];
    }
    return NULL;
}
