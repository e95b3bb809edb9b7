/* json_scan: a push-down automaton over bytes; see json_scan.h. */
#include "common/text/json_scan.h"

enum number {
    NUMBER_MINUS,
    NUMBER_ZERO,
    NUMBER_INT,
    NUMBER_POINT,
    NUMBER_FRACTION,
    NUMBER_E,
    NUMBER_E_SIGN,
    NUMBER_EXPONENT
};
/* escape: 0 none, 1 behind a backslash, 2..5: so many less one hexadecimal digits to come */

static const char *const words[] = {"true", "false", "null"};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool in_object(const struct json_scan *s)
{
    unsigned level = s->depth - 1u;
    return s->object[level / 8] >> level % 8 & 1;
}

static bool enter(struct json_scan *s, bool object)
{
    if (s->depth == JSON_SCAN_DEPTH)
        return false;
    uint8_t bit = (uint8_t)(1u << s->depth % 8);
    if (object)
        s->object[s->depth / 8] |= bit;
    else
        s->object[s->depth / 8] &= (uint8_t)~bit;
    s->depth++;
    s->state = object ? JSON_SCAN_FIRST_KEY : JSON_SCAN_ITEM;
    return true;
}

static bool leave(struct json_scan *s, char c)
{
    if (s->depth == 0 || c != (in_object(s) ? '}' : ']'))
        return false;
    s->depth--;
    s->state = JSON_SCAN_AFTER;
    return true;
}

static bool begin_value(struct json_scan *s, char c)
{
    if (c == '{' || c == '[')
        return enter(s, c == '{');
    if (c == '"') {
        s->state = JSON_SCAN_STRING;
        return true;
    }
    if (c == '-' || is_digit(c)) {
        s->state = JSON_SCAN_NUMBER;
        s->number = c == '-' ? NUMBER_MINUS : c == '0' ? NUMBER_ZERO : NUMBER_INT;
        return true;
    }
    for (uint8_t i = 0; i < 3; i++) {
        if (words[i][0] != c)
            continue;
        s->state = JSON_SCAN_WORD;
        s->word = i;
        s->word_at = 1;
        return true;
    }
    return false;
}

static bool in_string(struct json_scan *s, char c)
{
    if (s->escape >= 2) {
        s->escape = s->escape == 5 ? 0 : s->escape + 1;
        return is_hex(c);
    }
    if (s->escape == 1) {
        s->escape = c == 'u' ? 2 : 0;
        return c == 'u' || c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' ||
               c == 'r' || c == 't';
    }
    if (c == '\\')
        s->escape = 1;
    else if (c == '"')
        s->state = s->state == JSON_SCAN_IN_KEY ? JSON_SCAN_COLON : JSON_SCAN_AFTER;
    return (unsigned char)c >= 0x20;
}

/* Whether c goes on with the number; *ended: it does not, but the number is complete before it. */
static bool in_number(struct json_scan *s, char c, bool *ended)
{
    bool e = c == 'e' || c == 'E', whole = s->number == NUMBER_ZERO || s->number == NUMBER_INT;
    *ended = whole || s->number == NUMBER_FRACTION || s->number == NUMBER_EXPONENT;
    if (is_digit(c)) {
        switch (s->number) {
        case NUMBER_MINUS:
            s->number = c == '0' ? NUMBER_ZERO : NUMBER_INT;
            return true;
        case NUMBER_ZERO:
            *ended = false;
            return false;
        case NUMBER_POINT:
            s->number = NUMBER_FRACTION;
            return true;
        case NUMBER_E:
        case NUMBER_E_SIGN:
            s->number = NUMBER_EXPONENT;
            return true;
        default:
            return true;
        }
    }
    if (c == '.' && whole)
        s->number = NUMBER_POINT;
    else if (e && (whole || s->number == NUMBER_FRACTION))
        s->number = NUMBER_E;
    else if ((c == '+' || c == '-') && s->number == NUMBER_E)
        s->number = NUMBER_E_SIGN;
    else
        return false;
    return true;
}

static bool after_value(struct json_scan *s, char c)
{
    if (is_space(c))
        return true;
    if (s->depth == 0)
        return false;
    if (c == ',') {
        s->state = in_object(s) ? JSON_SCAN_KEY : JSON_SCAN_VALUE;
        return true;
    }
    return leave(s, c);
}

static bool step(struct json_scan *s, char c)
{
    bool ended;
    switch ((enum json_scan_state)s->state) {
    case JSON_SCAN_VALUE:
        return is_space(c) || begin_value(s, c);
    case JSON_SCAN_ITEM:
        return is_space(c) || (c == ']' ? leave(s, c) : begin_value(s, c));
    case JSON_SCAN_FIRST_KEY:
    case JSON_SCAN_KEY:
        if (c == '}' && s->state == JSON_SCAN_FIRST_KEY)
            return leave(s, c);
        if (c == '"')
            s->state = JSON_SCAN_IN_KEY;
        return is_space(c) || c == '"';
    case JSON_SCAN_COLON:
        if (c == ':')
            s->state = JSON_SCAN_VALUE;
        return is_space(c) || c == ':';
    case JSON_SCAN_IN_KEY:
    case JSON_SCAN_STRING:
        return in_string(s, c);
    case JSON_SCAN_NUMBER:
        if (in_number(s, c, &ended))
            return true;
        s->state = JSON_SCAN_AFTER;
        return ended && after_value(s, c);
    case JSON_SCAN_WORD:
        if (words[s->word][s->word_at] != c)
            return false;
        if (!words[s->word][++s->word_at])
            s->state = JSON_SCAN_AFTER;
        return true;
    case JSON_SCAN_AFTER:
        return after_value(s, c);
    case JSON_SCAN_BAD:
        break;
    }
    return false;
}

bool json_scan_push(struct json_scan *s, char c)
{
    if (step(s, c))
        return true;
    s->state = JSON_SCAN_BAD;
    return false;
}

bool json_scan_whole(const char *p, size_t n)
{
    struct json_scan s = {0};
    for (size_t i = 0; i < n; i++) {
        if (!json_scan_push(&s, p[i]))
            return false;
    }
    /* a number at the end is complete when a blank may follow */
    return n && json_scan_push(&s, ' ') && s.state == JSON_SCAN_AFTER && s.depth == 0;
}
