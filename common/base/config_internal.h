/* config_internal: what config.c and config_print.c share about a key. */
#ifndef BATON_BASE_CONFIG_INTERNAL_H
#define BATON_BASE_CONFIG_INTERNAL_H

#include <stdbool.h>

#include "common/base/config.h"

/* Where the key's value lies in the settings. */
void *config_field(const struct config_key *key, void *settings);
const void *config_field_const(const struct config_key *key, const void *settings);
bool config_is_text(const struct config_key *key);
/* "auto" is a size only where the default or the lower bound says that the daemon expects it. */
bool config_takes_auto(const struct config_key *key);
bool config_is_live(const struct config_key *key); /* a reload may change it */
/* What a number may be, in words: "1 to 512 sequences". */
void config_describe_range(const struct config_key *key, char *out, size_t n);
void config_print_help(const char *program, const struct config_key *keys, size_t n_keys);

#endif
