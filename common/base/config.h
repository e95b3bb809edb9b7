/* config: one table of keys yields the file parser (inih's only home), command-line flags,
 * environment names, --help, --print-config, --check-config and what a reload may change.
 *
 * A daemon describes its settings as an array of struct config_key over its own settings struct.
 * Precedence, lowest first: defaults, file (-c/--config FILE), environment (BATON_<KEY>), command
 * line (--key value, --key=value; underscores and dashes are the same). Unknown keys, bad values
 * and duplicates are errors that name file, line, key and what is allowed. In a file, '#' or ';' at
 * the start of a line and ';' after a blank begin a comment; an empty environment variable counts
 * as unset, an empty value makes a string or list unset (NULL). */
#ifndef BATON_BASE_CONFIG_H
#define BATON_BASE_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

#define BATON_VERSION "0.1.0"

enum config_type {
    CONFIG_STRING, /* char *; owned by the settings, freed by config_fini */
    CONFIG_INT,    /* int64_t; min..max */
    CONFIG_BOOL,   /* bool; on/off, yes/no, true/false, 1/0 */
    CONFIG_SIZE,   /* int64_t bytes; 4096, 64k, 2M, 1G (powers of 1024), see min for "auto" */
    CONFIG_MS,     /* int64_t milliseconds; plain numbers are ms; 250ms, 5s, 2m */
    CONFIG_ENUM,   /* int; index into `choices`, "a|b|c" */
    CONFIG_LIST    /* char *; comma-separated, kept as given with blanks trimmed */
};

struct config_key {
    const char *name; /* "kv_block_size" */
    enum config_type type;
    size_t offset;        /* into the settings struct */
    const char *fallback; /* default as text; NULL for an unset string or list */
    int64_t min, max;     /* CONFIG_INT, CONFIG_SIZE, CONFIG_MS; max 0: no upper bound. A size with
                             min -1 or fallback "auto" may also be "auto", which is -1 */
    const char *choices;  /* CONFIG_ENUM */
    const char *unit;     /* "tokens", "blocks", "ms", … for the help; may be NULL */
    const char *help;     /* one or two sentences: what it does and why one would change it */
};

enum config_action { CONFIG_RUN, CONFIG_CHECK, CONFIG_EXIT_OK, CONFIG_EXIT_ERROR };

/* Names, ended by NULL, of the keys that config_reread lets change; before anything else. Kept, not
 * copied. */
void config_live(const char *const *names);
/* Fills the settings from all sources. Handles --help, --version and --print-config by itself and
 * then says CONFIG_EXIT_OK. CONFIG_CHECK: --check-config was given and every value is one that its
 * key takes; the caller looks at the rest. On an error one line on stderr names it and the result
 * is CONFIG_EXIT_ERROR. Only after CONFIG_RUN and CONFIG_CHECK do the settings hold memory
 * (config_fini). What they held before is overwritten. program: "prefilld"; keys: n_keys entries.
 */
enum config_action config_load(const char *program, const struct config_key *keys, size_t n_keys,
                               void *settings, int argc, char **argv);
/* The same from defaults and one file alone: STATUS_INVALID after a line on stderr; else the
 * settings hold memory. */
int config_load_file(const char *program, const struct config_key *keys, size_t n_keys,
                     void *settings, const char *path) WARN_UNUSED;
/* Parses one value into the settings, whose strings must be NULL or owned; on failure nothing
 * changes and err gets a sentence without the key's name. */
int config_set(const struct config_key *key, void *settings, const char *value, char *err,
               size_t errlen) WARN_UNUSED;
/* The commented configuration file that --print-config shows: current values, help as comments. */
void config_print(const struct config_key *keys, size_t n_keys, const void *settings, FILE *out);
/* Reads all sources again into fresh, a second settings struct. STATUS_INVALID, with a line in err
 * that names file and line, when a value is bad or a key that is not live differs from settings;
 * fresh then holds nothing. */
int config_reread(const struct config_key *keys, size_t n_keys, const void *settings, void *fresh,
                  int argc, char **argv, char *err, size_t errlen) WARN_UNUSED;
/* Moves the live keys of fresh into settings and ends fresh; how many differed. Pointers to live
 * strings of settings are dead afterwards. */
uint32_t config_adopt(const struct config_key *keys, size_t n_keys, void *settings, void *fresh);
void config_fini(const struct config_key *keys, size_t n_keys, void *settings);

#endif
