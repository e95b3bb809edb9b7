/* config_print: the table for people: --help, and the commented file of --print-config. */
#include <stdbool.h>
#include <string.h>

#include "common/base/config_internal.h"

#define HELP_WIDTH 78

/* The value as config_set would read it. */
static void print_value(const struct config_key *key, const void *settings, FILE *out)
{
    const void *at = config_field_const(key, settings);
    const char *choice, *text;
    int64_t n;
    switch (key->type) {
    case CONFIG_STRING:
    case CONFIG_LIST:
        text = *(char *const *)at;
        fputs(text ? text : "", out);
        break;
    case CONFIG_INT:
    case CONFIG_MS:
        fprintf(out, "%lld", (long long)*(const int64_t *)at);
        break;
    case CONFIG_SIZE:
        n = *(const int64_t *)at;
        if (n == -1 && config_takes_auto(key)) {
            fputs("auto", out);
            break;
        }
        int power = 0;
        while (power < 4 && n != 0 && n % 1024 == 0) {
            n /= 1024;
            power++;
        }
        fprintf(out, "%lld%.*s", (long long)n, power ? 1 : 0, power ? &"kMGT"[power - 1] : "");
        break;
    case CONFIG_BOOL:
        fputs(*(const bool *)at ? "on" : "off", out);
        break;
    case CONFIG_ENUM:
        choice = key->choices;
        for (int i = *(const int *)at; i > 0; i--)
            choice += strcspn(choice, "|") + 1;
        fprintf(out, "%.*s", (int)strcspn(choice, "|"), choice);
        break;
    }
}

/* text in lines of at most HELP_WIDTH columns, each after prefix. */
static void print_wrapped(const char *prefix, const char *text, FILE *out)
{
    size_t room = HELP_WIDTH - strlen(prefix);
    while (*text) {
        size_t n = strlen(text);
        if (n > room) {
            n = room;
            while (n > 0 && text[n] != ' ')
                n--;
            if (n == 0)
                n = strcspn(text, " ");
        }
        fprintf(out, "%s%.*s\n", prefix, (int)n, text);
        text += n;
        while (*text == ' ')
            text++;
    }
}

/* "Default: 16; 1 to 256 tokens." */
static void describe_key(const struct config_key *key, char *out, size_t n)
{
    char allowed[256] = "";
    switch (key->type) {
    case CONFIG_INT:
    case CONFIG_SIZE:
    case CONFIG_MS:
        config_describe_range(key, allowed, sizeof allowed);
        break;
    case CONFIG_BOOL:
        snprintf(allowed, sizeof allowed, "on or off");
        break;
    case CONFIG_ENUM:
        snprintf(allowed, sizeof allowed, "one of %s", key->choices);
        break;
    case CONFIG_LIST:
        snprintf(allowed, sizeof allowed, "comma-separated");
        break;
    case CONFIG_STRING:
        break;
    }
    snprintf(out, n, "Default: %s%s%s.%s",
             key->fallback && *key->fallback ? key->fallback : "unset", *allowed ? "; " : "",
             allowed, config_is_live(key) ? " SIGHUP reloads it." : "");
}

void config_print(const struct config_key *keys, size_t n_keys, const void *settings, FILE *out)
{
    char about[512];
    for (size_t i = 0; i < n_keys; i++) {
        describe_key(&keys[i], about, sizeof about);
        print_wrapped("# ", keys[i].help ? keys[i].help : "", out);
        print_wrapped("# ", about, out);
        fprintf(out, "%s =", keys[i].name);
        if (!config_is_text(&keys[i]) || *(char *const *)config_field_const(&keys[i], settings))
            fputc(' ', out);
        print_value(&keys[i], settings, out);
        fputs(i + 1 < n_keys ? "\n\n" : "\n", out);
    }
}

void config_print_help(const char *program, const struct config_key *keys, size_t n_keys)
{
    char about[512];
    printf("usage: %s [-c FILE] [--KEY VALUE]...\n\n"
           "  -c, --config FILE  read settings from FILE\n"
           "  --print-config     show every setting with its current value, then exit\n"
           "  --check-config     exit 0 when the settings are valid, else say why not\n"
           "  --version          show the version, then exit\n"
           "  --help             this text\n\n"
           "Settings, also as KEY = VALUE in the file or as BATON_KEY in the environment;\n"
           "the command line wins over the environment, the environment over the file:\n",
           program);
    for (size_t i = 0; i < n_keys; i++) {
        describe_key(&keys[i], about, sizeof about);
        printf("\n  --%s\n", keys[i].name);
        print_wrapped("      ", keys[i].help ? keys[i].help : "", stdout);
        print_wrapped("      ", about, stdout);
    }
}
