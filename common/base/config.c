/* config: settings from one table.
 *
 * config_load walks the sources in order of precedence (defaults, file, environment, command line)
 * and hands every value as text to config_set, which alone knows the types. So a value means the
 * same wherever it was written, and every complaint has the same shape:
 *
 *   prefilld: prefill.conf line 12: max_batch: "0" is not allowed: 1 to 512 sequences
 *
 * The file is read by inih, one key a line, without sections. inih keeps lines in a small fixed
 * buffer, so the reader here takes each line whole, drops its indentation and inline comment
 * (blank, then ';'), and feeds it to inih in pieces: a first piece and indented ones, which inih
 * reports as further values of the same key; they are joined before the value is set. Cuts are made
 * only where no blank gets lost.
 *
 * A running daemon reads the same sources again into a second set (config_reread). It is taken as a
 * whole or not at all: one bad value, or one change of a key that is not live, refuses it.
 *
 * Left out on purpose: sections. A daemon has one flat set. */
#include "common/base/config_internal.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/buf.h"
#include "common/base/mem.h"

#define FILE_LINE_MAX 65536

void *config_field(const struct config_key *key, void *settings)
{
    return (char *)settings + key->offset;
}

const void *config_field_const(const struct config_key *key, const void *settings)
{
    return (const char *)settings + key->offset;
}

bool config_is_text(const struct config_key *key)
{
    return key->type == CONFIG_STRING || key->type == CONFIG_LIST;
}

/* "auto" is a size only where the default or the lower bound says that the daemon expects it. */
bool config_takes_auto(const struct config_key *key)
{
    return key->type == CONFIG_SIZE &&
           (key->min < 0 || (key->fallback && strcmp(key->fallback, "auto") == 0));
}

/* Factor of a unit suffix, 0 when there is no such unit. */
static int64_t unit_factor(enum config_type type, const char *unit)
{
    if (*unit == 0)
        return 1;
    if (type == CONFIG_SIZE && unit[1] == 0) {
        switch (unit[0]) {
        case 'k':
        case 'K':
            return (int64_t)1 << 10;
        case 'm':
        case 'M':
            return (int64_t)1 << 20;
        case 'g':
        case 'G':
            return (int64_t)1 << 30;
        case 't':
        case 'T':
            return (int64_t)1 << 40;
        }
    }
    if (type == CONFIG_MS) {
        if (strcmp(unit, "ms") == 0)
            return 1;
        if (strcmp(unit, "s") == 0)
            return 1000;
        if (strcmp(unit, "m") == 0)
            return 60 * 1000;
        if (strcmp(unit, "h") == 0)
            return 60 * 60 * 1000;
    }
    return 0;
}

/* What a number may be, in words: "1 to 512 sequences". */
void config_describe_range(const struct config_key *key, char *out, size_t n)
{
    const char *unit = key->unit                  ? key->unit
                       : key->type == CONFIG_MS   ? "ms"
                       : key->type == CONFIG_SIZE ? "bytes"
                                                  : "";
    const char *either = config_takes_auto(key) ? "auto, or " : "";
    int64_t min = config_takes_auto(key) && key->min < 0 ? 0 : key->min;
    if (key->max)
        snprintf(out, n, "%s%lld to %lld%s%s", either, (long long)min, (long long)key->max,
                 *unit ? " " : "", unit);
    else
        snprintf(out, n, "%s%lld or more%s%s", either, (long long)min, *unit ? " " : "", unit);
}

static const char *form_of(enum config_type type)
{
    switch (type) {
    case CONFIG_SIZE:
        return "a size such as 4096, 64k, 2M or 1G";
    case CONFIG_MS:
        return "a time such as 250ms, 5s or 2m";
    default:
        return "a whole number";
    }
}

static int parse_number(const struct config_key *key, const char *value, int64_t *out, char *err,
                        size_t errlen)
{
    char range[128], *end;
    if (config_takes_auto(key) && strcmp(value, "auto") == 0) {
        *out = -1;
        return STATUS_OK;
    }
    errno = 0;
    long long n = strtoll(value, &end, 10);
    int64_t factor = end == value || isspace((unsigned char)*value) || *value == '+'
                         ? 0
                         : unit_factor(key->type, end);
    if (factor == 0) {
        snprintf(err, errlen, "\"%s\" is not %s%s", value, form_of(key->type),
                 config_takes_auto(key) ? ", or auto" : "");
        return STATUS_INVALID;
    }
    int64_t least = config_takes_auto(key) && key->min < 0 ? 0 : key->min, product;
    if (errno == ERANGE || __builtin_mul_overflow((int64_t)n, factor, &product) ||
        product < least || (key->max && product > key->max)) {
        config_describe_range(key, range, sizeof range);
        snprintf(err, errlen, "\"%s\" is not allowed: %s", value, range);
        return STATUS_RANGE;
    }
    *out = product;
    return STATUS_OK;
}

static int parse_bool(const char *value, bool *out)
{
    static const char *const words[2][4] = {{"off", "no", "false", "0"},
                                            {"on", "yes", "true", "1"}};
    for (int v = 0; v < 2; v++) {
        for (int i = 0; i < 4; i++) {
            if (strcmp(value, words[v][i]) == 0) {
                *out = v;
                return STATUS_OK;
            }
        }
    }
    return STATUS_INVALID;
}

/* The index of value among "a|b|c", or -1. */
static int find_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    int index = 0;
    for (const char *at = choices;; index++) {
        size_t len = strcspn(at, "|");
        if (len == n && memcmp(at, value, n) == 0)
            return index;
        if (at[len] == 0)
            return -1;
        at += len + 1;
    }
}

/* "a , b,c" -> "a,b,c"; NULL when memory is short. Empty elements are the caller's to judge. */
static char *trim_list(const char *value)
{
    struct buf b;
    buf_init(&b, 0);
    for (const char *at = value;; at++) {
        size_t len = strcspn(at, ",");
        const char *first = at, *last = at + len;
        while (first < last && isspace((unsigned char)*first))
            first++;
        while (last > first && isspace((unsigned char)last[-1]))
            last--;
        buf_append(&b, first, (size_t)(last - first));
        at += len;
        if (*at == 0)
            break;
        buf_putc(&b, ',');
    }
    char *list = buf_take(&b);
    if (!list)
        buf_fini(&b);
    return list;
}

static int set_text(const struct config_key *key, void *settings, const char *value, char *err,
                    size_t errlen)
{
    for (const char *p = value; *p; p++) {
        if ((unsigned char)*p < 0x20 && *p != '\t') {
            snprintf(err, errlen, "control characters are not allowed");
            return STATUS_INVALID;
        }
    }
    char *copy = NULL, **at = config_field(key, settings);
    if (*value) {
        copy = key->type == CONFIG_LIST ? trim_list(value) : mem_strdup(value);
        if (!copy) {
            snprintf(err, errlen, "out of memory");
            return STATUS_NOMEM;
        }
    }
    free(*at);
    *at = copy;
    return STATUS_OK;
}

int config_set(const struct config_key *key, void *settings, const char *value, char *err,
               size_t errlen)
{
    bool flag;
    int choice;
    switch (key->type) {
    case CONFIG_STRING:
    case CONFIG_LIST:
        return set_text(key, settings, value, err, errlen);
    case CONFIG_INT:
    case CONFIG_SIZE:
    case CONFIG_MS:
        return parse_number(key, value, config_field(key, settings), err, errlen);
    case CONFIG_BOOL:
        if (parse_bool(value, &flag) != STATUS_OK) {
            snprintf(err, errlen, "\"%s\" is not on or off", value);
            return STATUS_INVALID;
        }
        *(bool *)config_field(key, settings) = flag;
        return STATUS_OK;
    case CONFIG_ENUM:
        choice = find_choice(key->choices, value);
        if (choice < 0) {
            snprintf(err, errlen, "\"%s\" is not one of %s", value, key->choices);
            return STATUS_INVALID;
        }
        *(int *)config_field(key, settings) = choice;
        return STATUS_OK;
    }
    snprintf(err, errlen, "unknown type");
    return STATUS_INTERNAL;
}

static const char *const *live_keys;

void config_live(const char *const *names)
{
    live_keys = names;
}

bool config_is_live(const struct config_key *key)
{
    for (const char *const *name = live_keys; name && *name; name++) {
        if (strcmp(*name, key->name) == 0)
            return true;
    }
    return false;
}

/* ---- the sources ---- */

struct load {
    const char *program;
    const struct config_key *keys;
    size_t n_keys;
    void *settings;
    bool *seen; /* per key: set by the source that is being read */
    int *lines; /* per key: the line of the file that has it, 0 for none */
    char *err;  /* where a complaint goes; NULL: to standard error */
    size_t errlen;
    bool failed;
};

static void complain(struct load *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Only the first complaint is shown: later ones are often its consequences. */
static void complain(struct load *l, const char *fmt, ...)
{
    if (l->failed)
        return;
    l->failed = true;
    va_list ap;
    va_start(ap, fmt);
    if (l->err) {
        vsnprintf(l->err, l->errlen, fmt, ap);
    } else {
        fprintf(stderr, "%s: ", l->program);
        vfprintf(stderr, fmt, ap);
        fputc('\n', stderr);
    }
    va_end(ap);
}

/* Compares a key with the first n bytes of a name, dashes as underscores. */
static const struct config_key *find_key(const struct load *l, const char *name, size_t n)
{
    for (size_t i = 0; i < l->n_keys; i++) {
        const char *key = l->keys[i].name;
        if (strlen(key) != n)
            continue;
        size_t j = 0;
        while (j < n && (name[j] == '-' ? '_' : name[j]) == key[j])
            j++;
        if (j == n)
            return &l->keys[i];
    }
    return NULL;
}

/* Sets one key once; where says who asks: "prefill.conf line 3", "command line"; line: of the file,
 * else 0. */
static void apply(struct load *l, const char *where, int line, const char *name, size_t name_len,
                  const char *value)
{
    char err[512];
    const struct config_key *key = find_key(l, name, name_len);
    if (!key) {
        complain(l, "%s: there is no setting \"%.*s\" (see --help)", where, (int)name_len, name);
        return;
    }
    if (l->seen[key - l->keys]) {
        complain(l, "%s: %s is set twice", where, key->name);
        return;
    }
    l->seen[key - l->keys] = true;
    l->lines[key - l->keys] = line;
    if (config_set(key, l->settings, value, err, sizeof err) != STATUS_OK)
        complain(l, "%s: %s: %s", where, key->name, err);
}

static void new_source(struct load *l)
{
    memset(l->seen, 0, l->n_keys * sizeof *l->seen);
}

static void load_defaults(struct load *l)
{
    for (size_t i = 0; i < l->n_keys; i++) {
        const struct config_key *key = &l->keys[i];
        if (config_is_text(key))
            *(char **)config_field(key, l->settings) = NULL;
    }
    for (size_t i = 0; i < l->n_keys; i++) {
        ASSERT_MSG(config_is_text(&l->keys[i]) || l->keys[i].fallback, "%s has no default",
                   l->keys[i].name);
        if (l->keys[i].fallback)
            apply(l, "default", 0, l->keys[i].name, strlen(l->keys[i].name), l->keys[i].fallback);
    }
}

/* Reading state of one file: the logical line that is being fed to inih, and what came of it. */
struct file {
    struct load *load;
    const char *path;
    FILE *stream;
    int line_no;
    char *line; /* without indentation, comment and line end */
    size_t cap, len, at;
    char name[128];
    struct buf value;
    bool pending; /* name and value wait to be applied */
};

static void file_commit(struct file *f)
{
    char where[PATH_MAX + 32];
    if (!f->pending)
        return;
    f->pending = false;
    snprintf(where, sizeof where, "%s line %d", f->path, f->line_no);
    if (!buf_ok(&f->value))
        complain(f->load, "%s: out of memory", where);
    else
        apply(f->load, where, f->line_no, f->name, strlen(f->name), buf_str(&f->value));
}

static bool file_next_line(struct file *f)
{
    ssize_t got = getline(&f->line, &f->cap, f->stream);
    if (got < 0)
        return false;
    f->line_no++;
    size_t len = (size_t)got, skip = 0;
    if (memchr(f->line, 0, len) || len > FILE_LINE_MAX) {
        complain(f->load, "%s line %d: %s", f->path, f->line_no,
                 len > FILE_LINE_MAX ? "line too long" : "not a text file");
        return false;
    }
    if (f->line_no == 1 && len >= 3 && memcmp(f->line, "\xef\xbb\xbf", 3) == 0)
        skip = 3;
    while (skip < len && isspace((unsigned char)f->line[skip]))
        skip++;
    for (size_t i = skip; i < len; i++) {
        bool comment = f->line[i] == ';' && (i == skip || isspace((unsigned char)f->line[i - 1]));
        if (comment || (f->line[i] == '#' && i == skip)) {
            len = i;
            break;
        }
    }
    while (len > skip && isspace((unsigned char)f->line[len - 1]))
        len--;
    f->len = len - skip;
    f->at = 0;
    memmove(f->line, f->line + skip, f->len);
    f->line[f->len] = 0;
    if (f->len && !strpbrk(f->line, f->line[0] == '[' ? "]" : "=:")) {
        complain(f->load, "%s line %d: \"%.40s\" is not of the form key = value", f->path,
                 f->line_no, f->line);
        return false;
    }
    return true;
}

/* inih's fgets: the next piece of the current line, or of the next one. */
static char *file_read(char *to, int size, void *ctx)
{
    struct file *f = ctx;
    if (f->at >= f->len) {
        file_commit(f);
        if (f->load->failed || !file_next_line(f))
            return NULL;
    }
    size_t room = (size_t)size - 4, n = f->len - f->at; /* indent, CR, LF, NUL */
    const char *from = f->line + f->at;
    if (n > room) {
        n = room;
        while (n > 0 && (isspace((unsigned char)from[n - 1]) || isspace((unsigned char)from[n])))
            n--;
    }
    if (f->len && n == 0) {
        complain(f->load, "%s line %d: too many blanks in a row", f->path, f->line_no);
        return NULL;
    }
    snprintf(to, (size_t)size, "%s%.*s\n", f->at ? " " : "", (int)n, from);
    f->at += n;
    return to;
}

static int file_value(void *ctx, const char *section, const char *name, const char *value)
{
    struct file *f = ctx;
    if (*section) {
        complain(f->load, "%s line %d: [%s]: sections are not used here", f->path, f->line_no,
                 section);
        return 0;
    }
    if (!f->pending) {
        snprintf(f->name, sizeof f->name, "%s", name);
        buf_reset(&f->value);
        f->pending = true;
    }
    buf_puts(&f->value, value);
    return 1;
}

static void load_file(struct load *l, const char *path)
{
    struct file f = {.load = l, .path = path, .stream = fopen(path, "re")};
    if (!f.stream) {
        complain(l, "%s: %s", path, strerror(errno));
        return;
    }
    buf_init(&f.value, FILE_LINE_MAX);
    new_source(l);
    int bad_line = ini_parse_stream(file_read, &f, file_value, &f);
    file_commit(&f);
    if (ferror(f.stream))
        complain(l, "%s: cannot be read", path);
    if (bad_line)
        complain(l, "%s line %d: cannot be understood", path, f.line_no);
    buf_fini(&f.value);
    free(f.line);
    fclose(f.stream);
}

/* An empty variable is the same as none: that is how compose files pass optional settings. */
static void load_environment(struct load *l)
{
    char name[160] = "BATON_";
    new_source(l);
    for (size_t i = 0; i < l->n_keys; i++) {
        const char *key = l->keys[i].name;
        size_t n = 6;
        for (; *key && n < sizeof name - 1; key++)
            name[n++] = (char)toupper((unsigned char)*key);
        name[n] = 0;
        const char *value = getenv(name);
        if (value && *value)
            apply(l, name, 0, l->keys[i].name, strlen(l->keys[i].name), value);
    }
}

/* What the command line asks for besides settings. */
struct options {
    const char *file;
    bool help, version, print, check;
};

/* Both passes over the command line: the first (settings false) fills the options, because the
 * file comes before the flags; the second applies the flags. */
static void load_arguments(struct load *l, int argc, char **argv, bool settings, struct options *o)
{
    static const struct {
        const char *name;
        size_t offset;
    } switches[] = {{"--help", offsetof(struct options, help)},
                    {"-h", offsetof(struct options, help)},
                    {"--version", offsetof(struct options, version)},
                    {"--print-config", offsetof(struct options, print)},
                    {"--check-config", offsetof(struct options, check)}};
    new_source(l);
    for (int i = 1; i < argc && !l->failed; i++) {
        const char *arg = argv[i];
        bool known = false;
        for (size_t s = 0; s < sizeof switches / sizeof switches[0] && !known; s++) {
            known = strcmp(arg, switches[s].name) == 0;
            if (known)
                *(bool *)((char *)o + switches[s].offset) = true;
        }
        if (known)
            continue;
        bool is_c = strcmp(arg, "-c") == 0;
        if (!is_c && strncmp(arg, "--", 2) != 0) {
            complain(l, "command line: \"%s\" is not an option (see --help)", arg);
            return;
        }
        const char *name = is_c ? "config" : arg + 2;
        size_t n = strcspn(name, "=");
        const char *value = name[n] ? name + n + 1 : NULL;
        bool is_file = n == 6 && strncmp(name, "config", 6) == 0;
        if (!is_file && !find_key(l, name, n)) {
            complain(l, "command line: there is no setting \"%.*s\" (see --help)", (int)n, name);
            return;
        }
        if (!value && ++i < argc)
            value = argv[i];
        if (!value) {
            complain(l, "command line: %s needs a value", arg);
            return;
        }
        if (!is_file && settings) {
            apply(l, "command line", 0, name, n, value);
        } else if (is_file && !settings) {
            if (o->file)
                complain(l, "command line: -c is given twice");
            o->file = value;
        }
    }
}

static bool load_open(struct load *l)
{
    l->seen = mem_array(l->n_keys, sizeof *l->seen);
    l->lines = mem_array(l->n_keys, sizeof *l->lines);
    if (!l->seen || !l->lines)
        complain(l, "out of memory");
    return !l->failed;
}

static void load_close(struct load *l)
{
    free(l->seen);
    free(l->lines);
}

/* Defaults are in place and the options known. */
static void load_sources(struct load *l, int argc, char **argv, struct options *o)
{
    if (o->file)
        load_file(l, o->file);
    if (!l->failed)
        load_environment(l);
    if (!l->failed)
        load_arguments(l, argc, argv, true, o);
}

enum config_action config_load(const char *program, const struct config_key *keys, size_t n_keys,
                               void *settings, int argc, char **argv)
{
    struct load l = {.program = program, .keys = keys, .n_keys = n_keys, .settings = settings};
    struct options o = {0};
    if (!load_open(&l)) {
        load_close(&l);
        return CONFIG_EXIT_ERROR;
    }
    load_defaults(&l);
    load_arguments(&l, argc, argv, false, &o);
    if (!l.failed && o.help) {
        config_print_help(program, keys, n_keys);
    } else if (!l.failed && o.version) {
        printf("%s %s\n", program, BATON_VERSION);
    } else if (!l.failed) {
        load_sources(&l, argc, argv, &o);
        if (!l.failed && o.print)
            config_print(keys, n_keys, settings, stdout);
    }
    load_close(&l);
    if (!l.failed && !o.help && !o.version && !o.print)
        return o.check ? CONFIG_CHECK : CONFIG_RUN;
    config_fini(keys, n_keys, settings);
    return l.failed || fflush(stdout) != 0 ? CONFIG_EXIT_ERROR : CONFIG_EXIT_OK;
}

int config_load_file(const char *program, const struct config_key *keys, size_t n_keys,
                     void *settings, const char *path)
{
    struct load l = {.program = program, .keys = keys, .n_keys = n_keys, .settings = settings};
    if (!load_open(&l)) {
        load_close(&l);
        return STATUS_NOMEM;
    }
    load_defaults(&l);
    load_file(&l, path);
    load_close(&l);
    if (!l.failed)
        return STATUS_OK;
    config_fini(keys, n_keys, settings);
    return STATUS_INVALID;
}

/* ---- reading them again ---- */

static bool same_value(const struct config_key *key, const void *a, const void *b)
{
    const void *x = config_field_const(key, a), *y = config_field_const(key, b);
    const char *s, *t;
    switch (key->type) {
    case CONFIG_STRING:
    case CONFIG_LIST:
        s = *(char *const *)x;
        t = *(char *const *)y;
        return s && t ? strcmp(s, t) == 0 : s == t;
    case CONFIG_BOOL:
        return *(const bool *)x == *(const bool *)y;
    case CONFIG_ENUM:
        return *(const int *)x == *(const int *)y;
    case CONFIG_INT:
    case CONFIG_SIZE:
    case CONFIG_MS:
        break;
    }
    return *(const int64_t *)x == *(const int64_t *)y;
}

int config_reread(const struct config_key *keys, size_t n_keys, const void *settings, void *fresh,
                  int argc, char **argv, char *err, size_t errlen)
{
    struct load l = {
        .keys = keys, .n_keys = n_keys, .settings = fresh, .err = err, .errlen = errlen};
    struct options o = {0};
    if (!load_open(&l)) {
        load_close(&l);
        return STATUS_NOMEM;
    }
    load_defaults(&l);
    load_arguments(&l, argc, argv, false, &o);
    if (!l.failed)
        load_sources(&l, argc, argv, &o);
    for (size_t i = 0; i < n_keys && !l.failed; i++) {
        if (config_is_live(&keys[i]) || same_value(&keys[i], settings, fresh))
            continue;
        if (l.lines[i])
            complain(&l, "%s line %d: %s cannot change while the program runs: restart it", o.file,
                     l.lines[i], keys[i].name);
        else
            complain(&l,
                     "%s is no longer set, and cannot change while the program runs: restart it",
                     keys[i].name);
    }
    load_close(&l);
    if (!l.failed)
        return STATUS_OK;
    config_fini(keys, n_keys, fresh);
    return STATUS_INVALID;
}

uint32_t config_adopt(const struct config_key *keys, size_t n_keys, void *settings, void *fresh)
{
    uint32_t changed = 0;
    for (size_t i = 0; i < n_keys; i++) {
        const struct config_key *key = &keys[i];
        void *to = config_field(key, settings), *from = config_field(key, fresh);
        if (!config_is_live(key) || same_value(key, settings, fresh))
            continue;
        changed++;
        if (config_is_text(key)) {
            char *old = *(char **)to;
            *(char **)to = *(char **)from;
            *(char **)from = old;
        } else if (key->type == CONFIG_BOOL) {
            *(bool *)to = *(bool *)from;
        } else if (key->type == CONFIG_ENUM) {
            *(int *)to = *(int *)from;
        } else {
            *(int64_t *)to = *(int64_t *)from;
        }
    }
    config_fini(keys, n_keys, fresh);
    return changed;
}

void config_fini(const struct config_key *keys, size_t n_keys, void *settings)
{
    for (size_t i = 0; i < n_keys; i++) {
        if (config_is_text(&keys[i])) {
            char **at = config_field(&keys[i], settings);
            free(*at);
            *at = NULL;
        }
    }
}
