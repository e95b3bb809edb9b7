/* fault: parses the entries and counts hits; see fault.h.
 *
 * Any thread may hit a point, so the table has a lock; it is not held while an action happens. */
#include "common/base/fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"

#define ENTRIES_MAX 64
#define TEXT_MAX    8192

enum action { NONE, DROP, CORRUPT, REFUSE, FAIL, KILL, STOP, EXIT, DELAY, SET };
static const char *const action_names[] = {"none", "drop", "corrupt", "refuse", "fail",
                                           "kill", "stop", "exit",    "delay",  "set"};

struct entry {
    char name[32], point[48];
    unsigned long first, every, hits;
    enum action action;
    unsigned long arg;
};

_Atomic bool fault_armed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry entries[ENTRIES_MAX];
static size_t n_entries;
static char file[4096]; /* of @FILE; else empty */
static struct stat seen;

/* Is there this mark with a number behind it? Moves past both. */
static bool number(const char **p, char mark, unsigned long *out)
{
    char *end;
    if (**p != mark || (*p)[1] < '0' || (*p)[1] > '9')
        return false;
    *out = strtoul(*p + 1, &end, 10);
    *p = end;
    return true;
}

/* Copies up to one of the stop characters; false when it is empty or does not fit. */
static bool word(const char **p, const char *stop, char *out, size_t size)
{
    size_t n = strcspn(*p, stop);
    if (n == 0 || n >= size)
        return false;
    memcpy(out, *p, n);
    out[n] = 0;
    *p += n;
    return true;
}

static bool parse_entry(const char *p, struct entry *e)
{
    char action[16];
    *e = (struct entry){.first = 1};
    if (strchr(p, '/')) {
        if (!word(&p, "/", e->name, sizeof e->name))
            return false;
        p++;
    }
    if (!word(&p, "@=", e->point, sizeof e->point))
        return false;
    if (number(&p, '@', &e->first))
        number(&p, '+', &e->every);
    if (*p++ != '=' || e->first == 0 || !word(&p, ":", action, sizeof action))
        return false;
    for (int i = DROP; i <= SET; i++) {
        if (strcmp(action, action_names[i]) == 0)
            e->action = (enum action)i;
    }
    bool has_arg = number(&p, ':', &e->arg);
    return e->action != NONE && *p == 0 && has_arg == (e->action == DELAY || e->action == SET);
}

static int parse(char *text, char *err, size_t errlen)
{
    struct entry fresh[ENTRIES_MAX];
    size_t n = 0;
    char *rest = NULL;
    for (char *t = strtok_r(text, ", \t\n", &rest); t; t = strtok_r(NULL, ", \t\n", &rest)) {
        if (n == ENTRIES_MAX || !parse_entry(t, &fresh[n])) {
            snprintf(err, errlen, "BATON_FAULT: %s cannot be understood", t);
            return STATUS_INVALID;
        }
        n++;
    }
    memcpy(entries, fresh, n * sizeof *fresh);
    n_entries = n;
    return STATUS_OK;
}

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Takes the file when it has changed; a file that is missing has no entries. */
static int refresh(char *err, size_t errlen)
{
    struct stat now = {0};
    char text[TEXT_MAX] = "";
    if (stat(file, &now) == 0 && same(&now, &seen))
        return STATUS_OK;
    seen = now;
    FILE *f = fopen(file, "re");
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        fclose(f);
    }
    return parse(text, err, errlen);
}

int fault_arm_text(const char *text, char *err, size_t errlen)
{
    char copy[TEXT_MAX];
    int rc = STATUS_OK;
    pthread_mutex_lock(&lock);
    n_entries = 0;
    file[0] = 0;
    seen = (struct stat){0};
    bool armed = text && *text;
    if (armed && *text == '@') {
        snprintf(file, sizeof file, "%s", text + 1);
        rc = refresh(err, errlen);
    } else if (armed && strlen(text) < sizeof copy) {
        rc = parse(strcpy(copy, text), err, errlen);
    } else if (armed) {
        snprintf(err, errlen, "BATON_FAULT is too long");
        rc = STATUS_INVALID;
    }
    pthread_mutex_unlock(&lock);
    atomic_store(&fault_armed, armed && rc == STATUS_OK);
    return rc;
}

int fault_arm(char *err, size_t errlen)
{
    const char *text = getenv("BATON_FAULT");
    if (text && *text)
        log_warn("BATON_FAULT is set: this process will fail where it says");
    return fault_arm_text(text, err, errlen);
}

/* Counts the hit; the entry that is due, or NONE. */
static struct entry count(const char *point, const char *suffix)
{
    struct entry due = {0};
    char full[96], err[256];
    snprintf(full, sizeof full, "%s%s%s", point, *suffix ? "." : "", suffix);
    pthread_mutex_lock(&lock);
    if (file[0] && refresh(err, sizeof err) != STATUS_OK)
        log_warn("%s", err);
    for (size_t i = 0; i < n_entries; i++) {
        struct entry *e = &entries[i];
        if (strcmp(e->point, full) != 0 || (e->name[0] && strcmp(e->name, log_name()) != 0))
            continue;
        e->hits++;
        bool again = e->every && e->hits > e->first && (e->hits - e->first) % e->every == 0;
        if (due.action == NONE && (e->hits == e->first || again))
            due = *e;
    }
    pthread_mutex_unlock(&lock);
    if (due.action != NONE)
        log_warn("fault: %s hit %lu: %s", full, due.hits, action_names[due.action]);
    return due;
}

enum fault_action fault_hit(const char *point, const char *suffix)
{
    struct entry e = count(point, suffix);
    struct timespec t = {.tv_sec = (time_t)(e.arg / 1000),
                         .tv_nsec = (long)(e.arg % 1000) * 1000000};
    switch (e.action) {
    case DROP:
        return FAULT_DROP;
    case CORRUPT:
        return FAULT_CORRUPT;
    case REFUSE:
        return FAULT_REFUSE;
    case FAIL:
        return FAULT_FAIL;
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case STOP:
        kill(getpid(), SIGSTOP);
        break;
    case EXIT:
        _exit(EXIT_FAILURE);
    case DELAY:
        nanosleep(&t, NULL);
        break;
    case NONE:
    case SET:
        break;
    }
    return FAULT_NONE;
}

uint32_t fault_hit_number(const char *point, uint32_t otherwise)
{
    struct entry e = count(point, "");
    return e.action == SET ? (uint32_t)e.arg : otherwise;
}
