/* schema_format: the standard's string formats as regular expressions over code points.
 *
 * They are the grammars of the RFCs, not an approximation of them, where those are regular: dates
 * know the lengths of months and leap years. Left out are leap seconds and the year 0, which many
 * who read such an answer do not know (Python's datetime begins with the year 1), internationalised
 * names, and the formats that no regular expression says (regex, iri and its kin, uri-template). */
#include <string.h>

#include "common/text/schema_internal.h"

#define YEAR "(?:[1-9][0-9]{3}|0(?:[1-9][0-9]{2}|0(?:[1-9][0-9]|0[1-9])))"
#define DATE                                                                                       \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"                                \
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"                          \
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
#define TIME  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
#define ZONE  "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4  OCTET "(?:\\." OCTET "){3}"
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
    "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16             \
    ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16       \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16   \
    ")?::)"
/* A label: no hyphen at its ends, nor as third and fourth character ("xn--…" is a coded name, whose
 * rules are not regular). A name has at most 253 characters: three labels of any length, or eight
 * of up to 30. */
#define AN  "[A-Za-z0-9]"
#define ANH "[A-Za-z0-9-]"
#define LABEL(most)                                                                                \
    AN "(?:" AN "|" ANH AN "|" ANH ANH AN "|" ANH "(?:" AN ANH "|-" AN ")" ANH "{0," most "}" AN   \
       ")?"
#define HOSTNAME                                                                                   \
    "(?:" LABEL("58") "(?:\\." LABEL("58") "){0,2}|" LABEL("25") "(?:\\." LABEL("25") "){0,7})"
#define ATEXT      "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define ESCAPED    "%[0-9A-Fa-f]{2}"
#define UNRESERVED "A-Za-z0-9._~\\-"
#define SUB        "!$&'()*+,;="
#define PCHAR      "(?:[" UNRESERVED SUB ":@]|" ESCAPED ")"
#define AUTHORITY                                                                                  \
    "(?:(?:[" UNRESERVED SUB ":]|" ESCAPED ")*@)?(?:\\[(?:" IPV6                                   \
    "|v[0-9A-Fa-f]+\\.[" UNRESERVED SUB ":]+)\\]|(?:[" UNRESERVED SUB "]|" ESCAPED                 \
    ")*)(?::[0-9]*)?"
#define PATHS         "(?:/" PCHAR "*)*"
#define QUERY         "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define DURATION_TIME "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
#define POINTER       "(?:/(?:[^~/]|~[01])*)*"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date-time", "^" DATE "[Tt]" TIME ZONE "$"},
    {"date", "^" DATE "$"},
    {"time", "^" TIME ZONE "$"},
    {"duration",
     "^P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:" DURATION_TIME
     ")?|" DURATION_TIME "|[0-9]+W)$"},
    {"email", "^" ATEXT "(?:\\." ATEXT ")*@" HOSTNAME "$"},
    {"hostname", "^" HOSTNAME "$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^" IPV6 "$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY PATHS "|/(?:" PCHAR "+" PATHS ")?|" PCHAR
            "+" PATHS "|)" QUERY "$"},
    {"uri-reference", "^(?:[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY PATHS "|/(?:" PCHAR "+" PATHS
                      ")?|" PCHAR "+" PATHS "|)|//" AUTHORITY PATHS "|/(?:" PCHAR "+" PATHS ")?|"
                      "(?:[" UNRESERVED SUB "@]|" ESCAPED ")+" PATHS "|)" QUERY "$"},
    {"json-pointer", "^" POINTER "$"},
    {"relative-json-pointer", "^(?:0|[1-9][0-9]*)(?:#|" POINTER ")$"},
};
/* Of the standard, but not to be had. */
static const char *const refused[] = {"regex",        "iri",          "iri-reference",
                                      "uri-template", "idn-hostname", "idn-email"};

const char *schema_format(const char *name, bool *known)
{
    *known = true;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].pattern;
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (strcmp(refused[i], name) == 0)
            return NULL;
    }
    *known = false;
    return NULL;
}
