/* schema_number: numbers within limits, and multiples, as automata over their digits.
 *
 * A number without conditions may be written in any way that JSON has, an exponent included (of at
 * most two digits, so that it stays finite). With a condition it is written without one: sign,
 * digits, perhaps a point and digits: at most 40 whole digits, and with a fraction 15 in all, so
 * that a reader who makes it a double does not round it onto a limit or a whole number. Limits are
 * taken as the shortest decimal text of the number in the schema, so 1.1 means 1.1 and nothing near
 * it.
 *
 * x >= L is decided digit by digit: a longer whole part is larger, a shorter one smaller, and of
 * equally long ones the first digit that differs decides, in the fraction as well. x = k * m is a
 * remainder carried along the digits, with m as a whole number of units of its last decimal. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/schema_internal.h"

#define WHOLE_MAX     40
#define FRACTION_MAX  20
#define DOUBLE_DIGITS 15
#define REMAINDERS    20000u /* states of a multiple */
#define DECIMAL_ROOM  340

/* |x| as digits: whole part without leading zeros ("0" if none), fraction without trailing ones. */
struct decimal {
    bool negative;
    char whole[DECIMAL_ROOM], fraction[DECIMAL_ROOM];
};

static bool decimal_of(const json_t *v, struct decimal *d)
{
    char text[SCHEMA_NUMBER_TEXT], digits[SCHEMA_NUMBER_TEXT];
    size_t n = 0, point = 0;
    bool seen = false;
    long exponent = 0;
    schema_number_text(v, text);
    *d = (struct decimal){.negative = text[0] == '-'};
    for (const char *c = text + d->negative; *c; c++) {
        if (*c == '.') {
            seen = true;
        } else if (*c == 'e') {
            exponent = strtol(c + 1, NULL, 10);
            break;
        } else {
            digits[n++] = *c;
            point += !seen;
        }
    }
    long at = (long)point + exponent; /* digits before the point */
    if (at > DECIMAL_ROOM - 2 || at < -(DECIMAL_ROOM - SCHEMA_NUMBER_TEXT - 2))
        return false;
    size_t w = 0, f = 0;
    for (long i = 0; i < at; i++)
        d->whole[w++] = i < (long)n ? digits[i] : '0';
    for (long i = at; i < (long)n; i++)
        d->fraction[f++] = i < 0 ? '0' : digits[i];
    while (f > 0 && d->fraction[f - 1] == '0')
        d->fraction[--f] = 0;
    size_t zeros = strspn(d->whole, "0");
    memmove(d->whole, d->whole + zeros, strlen(d->whole) - zeros + 1);
    if (!d->whole[0])
        strcpy(d->whole, "0");
    if (strcmp(d->whole, "0") == 0 && !d->fraction[0])
        d->negative = false;
    return true;
}

/* ---- pieces ---- */

static uint32_t digit(struct automaton *a, uint32_t from, int lo, int hi)
{
    uint32_t to = automaton_state(a);
    if (lo <= hi)
        automaton_edge(a, from, (uint32_t)('0' + lo), (uint32_t)('0' + hi), to);
    return to;
}

static void digits_loop(struct automaton *a, uint32_t s)
{
    automaton_edge(a, s, '0', '9', s);
}

/* [.digits] */
static void optional_fraction(struct automaton *a, uint32_t from, uint32_t end)
{
    uint32_t d = digit(a, automaton_bytes(a, from, ".", 1), 0, 9);
    digits_loop(a, d);
    automaton_empty(a, d, end);
    automaton_empty(a, from, end);
}

/* A fraction whose digits, after those already read, are anything / are not all zero. */
static void any_tail(struct automaton *a, uint32_t from, uint32_t end)
{
    uint32_t s = automaton_state(a);
    automaton_empty(a, from, s);
    digits_loop(a, s);
    automaton_empty(a, s, end);
}

static void positive_tail(struct automaton *a, uint32_t from, uint32_t end)
{
    uint32_t s = automaton_state(a);
    automaton_empty(a, from, s);
    automaton_edge(a, s, '0', '0', s);
    any_tail(a, digit(a, s, 1, 9), end);
}

static void zero_tail(struct automaton *a, uint32_t from, uint32_t end)
{
    uint32_t s = automaton_state(a);
    automaton_empty(a, from, s);
    automaton_edge(a, s, '0', '0', s);
    automaton_empty(a, s, end);
}

/* Any whole part without leading zeros. */
static uint32_t any_whole(struct automaton *a, uint32_t from)
{
    uint32_t end = automaton_state(a), d = digit(a, from, 1, 9);
    automaton_edge(a, from, '0', '0', end);
    digits_loop(a, d);
    automaton_empty(a, d, end);
    return end;
}

/* x >= d, or x > d, for x without sign. */
static void at_least(struct automaton *a, uint32_t from, const struct decimal *d, bool strict,
                     uint32_t end)
{
    size_t n = strlen(d->whole), f = strlen(d->fraction);
    uint32_t s = digit(a, from, 1, 9); /* longer */
    for (size_t i = 0; i < n; i++)
        s = digit(a, s, 0, 9);
    digits_loop(a, s);
    optional_fraction(a, s, end);
    s = from;
    for (size_t i = 0; i < n; i++) { /* as long, and a digit is larger */
        int c = d->whole[i] - '0';
        uint32_t t = digit(a, s, c + 1, 9);
        for (size_t k = i + 1; k < n; k++)
            t = digit(a, t, 0, 9);
        optional_fraction(a, t, end);
        s = digit(a, s, c, c);
    }
    if (f == 0 && !strict)
        automaton_empty(a, s, end);
    uint32_t p = automaton_bytes(a, s, ".", 1); /* the same whole part */
    for (size_t i = 0; i < f; i++) {
        int c = d->fraction[i] - '0';
        any_tail(a, digit(a, p, c + 1, 9), end);
        p = digit(a, p, c, c);
    }
    if (strict)
        positive_tail(a, p, end);
    else
        any_tail(a, f == 0 ? digit(a, p, 0, 9) : p, end);
}

/* x <= d, or x < d, for x without sign. */
static void at_most(struct automaton *a, uint32_t from, const struct decimal *d, bool strict,
                    uint32_t end)
{
    size_t n = strlen(d->whole), f = strlen(d->fraction);
    if (n > 1) { /* shorter */
        uint32_t zero = digit(a, from, 0, 0), s = digit(a, from, 1, 9);
        optional_fraction(a, zero, end);
        for (size_t i = 1; i < n; i++) {
            optional_fraction(a, s, end);
            if (i + 1 < n)
                s = digit(a, s, 0, 9);
        }
    }
    uint32_t s = from;
    for (size_t i = 0; i < n; i++) { /* as long, and a digit is smaller */
        int c = d->whole[i] - '0';
        uint32_t t = digit(a, s, i == 0 && n > 1 ? 1 : 0, c - 1);
        for (size_t k = i + 1; k < n; k++)
            t = digit(a, t, 0, 9);
        optional_fraction(a, t, end);
        s = digit(a, s, c, c);
    }
    if (f > 0 || !strict)
        automaton_empty(a, s, end);
    uint32_t p = automaton_bytes(a, s, ".", 1);
    for (size_t i = 0; i < f; i++) {
        int c = d->fraction[i] - '0';
        any_tail(a, digit(a, p, 0, c - 1), end);
        p = digit(a, p, c, c);
        if (i + 1 < f)
            automaton_empty(a, p, end); /* it ends early, so it is smaller */
    }
    if (!strict)
        zero_tail(a, f == 0 ? digit(a, p, 0, 0) : p, end);
}

/* x >= limit (or >), or x <= limit (or <), with sign. */
static void limit_automaton(struct automaton *a, const struct decimal *d, bool lower, bool strict)
{
    struct decimal zero = {.whole = "0"};
    bool is_zero = strcmp(d->whole, "0") == 0 && !d->fraction[0];
    uint32_t end = automaton_state(a), minus = automaton_bytes(a, 0, "-", 1);
    uint32_t free_side = lower ? 0 : minus; /* where everything is allowed, if the sign decides */
    if (lower ? d->negative : !d->negative) {
        if (!lower && is_zero && strict)
            at_least(a, minus, &zero, true, end);
        else
            optional_fraction(a, any_whole(a, free_side), end);
        at_most(a, lower ? minus : 0, d, strict, end);
    } else {
        at_least(a, lower ? 0 : minus, d, strict, end);
        if (lower && is_zero && !strict) { /* -0 */
            uint32_t s = digit(a, minus, 0, 0);
            automaton_empty(a, s, end);
            zero_tail(a, digit(a, automaton_bytes(a, s, ".", 1), 0, 0), end);
        }
    }
    if (a->status == STATUS_OK)
        a->final[end] = 1;
}

/* Behind the point and at least one digit: states by how many more digits there may be, for "zeros
 * alone so far" and for "some other digit". */
static void fraction_states(struct automaton *a, uint32_t states[][2], uint32_t types, uint32_t end)
{
    for (int room = 0; room < FRACTION_MAX && a->status == STATUS_OK; room++) {
        states[room][0] = automaton_state(a);
        states[room][1] = automaton_state(a);
        automaton_empty(a, states[room][1], end);
        if (types & SCHEMA_INT)
            automaton_empty(a, states[room][0], end);
        if (room > 0) {
            automaton_edge(a, states[room][0], '0', '0', states[room - 1][0]);
            automaton_edge(a, states[room][0], '1', '9', states[room - 1][1]);
            automaton_edge(a, states[room][1], '0', '9', states[room - 1][1]);
        }
    }
}

/* [-]digits[.digits] of bounded length, by type. exact: at most as many digits as a double keeps
 * apart, when there is a fraction. */
static void form_automaton(struct automaton *a, uint32_t types, bool exact)
{
    uint32_t end = automaton_state(a), first = automaton_state(a), states[FRACTION_MAX][2] = {{0}};
    int most = exact ? DOUBLE_DIGITS : WHOLE_MAX + FRACTION_MAX;
    automaton_empty(a, 0, first);
    automaton_edge(a, 0, '-', '-', first);
    if (types & SCHEMA_FRACTION)
        fraction_states(a, states, types, end);
    for (int zero = 0; zero < 2; zero++) { /* digits that begin with another, or 0 */
        uint32_t s = zero ? digit(a, first, 0, 0) : digit(a, first, 1, 9);
        for (int n = 1; n <= (zero ? 1 : WHOLE_MAX) && a->status == STATUS_OK; n++) {
            int room = most - n < FRACTION_MAX ? most - n : FRACTION_MAX;
            if (types & SCHEMA_INT)
                automaton_empty(a, s, end);
            if (types & SCHEMA_FRACTION && room > 0) {
                uint32_t point = automaton_bytes(a, s, ".", 1);
                automaton_edge(a, point, '0', '0', states[room - 1][0]);
                automaton_edge(a, point, '1', '9', states[room - 1][1]);
            }
            if (n < WHOLE_MAX && !zero)
                s = digit(a, s, 0, 9);
        }
    }
    if (a->status == STATUS_OK)
        a->final[end] = 1;
}

/* ---- multiples ---- */

/* m as units / 10^scale; false: too fine or too large. */
static bool multiple_of(const json_t *v, uint32_t *units, uint32_t *scale)
{
    struct decimal d;
    uint64_t n = 0;
    if (!decimal_of(v, &d) || d.negative)
        return false;
    *scale = (uint32_t)strlen(d.fraction);
    for (const char *c = d.whole; *c && n < 100000000; c++)
        n = n * 10 + (uint64_t)(*c - '0');
    for (const char *c = d.fraction; *c && n < 100000000; c++)
        n = n * 10 + (uint64_t)(*c - '0');
    *units = (uint32_t)n;
    return n > 0 && n < 100000000 && *scale <= 18;
}

static uint32_t power_mod(uint32_t scale, uint32_t m)
{
    uint64_t p = 1 % m;
    for (uint32_t i = 0; i < scale; i++)
        p = p * 10 % m;
    return (uint32_t)p;
}

/* Digits whose value is a multiple. State 2 + phase * m + remainder; phase 0: before the point,
 * phase j: behind the j-th decimal. */
static void multiple_automaton(struct automaton *a, uint32_t m, uint32_t scale)
{
    uint32_t first = automaton_state(a), base = a->n;
    automaton_empty(a, 0, first);
    automaton_edge(a, 0, '-', '-', first);
    for (uint64_t i = 0; i < (uint64_t)m * (scale + 1) && a->status == STATUS_OK; i++)
        automaton_state(a);
    uint32_t tail = automaton_state(a), zeros = automaton_state(a);
    for (uint32_t d = 0; d <= 9; d++)
        automaton_edge(a, first, '0' + d, '0' + d, base + d % m);
    for (uint32_t phase = 0; phase <= scale && a->status == STATUS_OK; phase++) {
        uint64_t up = power_mod(scale - phase, m);
        for (uint32_t r = 0; r < m && a->status == STATUS_OK; r++) {
            uint32_t at = base + phase * m + r;
            bool whole = r * up % m == 0;
            a->final[at] = whole;
            for (uint32_t d = 0; d <= 9 && (phase == 0 || phase < scale); d++)
                automaton_edge(a, at, '0' + d, '0' + d,
                               base + (phase ? phase + 1 : 0) * m +
                                   (uint32_t)((r * 10ull + d) % m));
            if (phase == 0 && scale > 0) {
                uint32_t point = automaton_bytes(a, at, ".", 1);
                for (uint32_t d = 0; d <= 9; d++)
                    automaton_edge(a, point, '0' + d, '0' + d,
                                   base + m + (uint32_t)((r * 10ull + d) % m));
            } else if (phase == 0 && whole) {
                automaton_edge(a, at, '.', '.', tail);
            } else if (phase == scale && whole) {
                automaton_edge(a, at, '0', '0', zeros);
            }
        }
    }
    automaton_edge(a, tail, '0', '0', zeros);
    automaton_edge(a, zeros, '0', '0', zeros);
    if (a->status == STATUS_OK)
        a->final[zeros] = 1;
}

static bool multiple_known(struct schema *s, const json_t *schema, const char *key, uint32_t *units,
                           uint32_t *scale)
{
    const json_t *v = json_object_get(schema, key);
    if (!json_is_number(v) || json_number_value(v) <= 0) {
        schema_refuse(s, STATUS_FORMAT, schema, "multipleOf is not a number above 0");
        return false;
    }
    if (!multiple_of(v, units, scale) || (uint64_t)*units * (*scale + 1) > REMAINDERS) {
        schema_refuse(s, STATUS_LIMIT, schema, "multipleOf has too many digits");
        return false;
    }
    return true;
}

bool schema_is_multiple(struct schema *s, const json_t *schema, const char *key, const json_t *v)
{
    uint32_t units, scale;
    struct decimal d;
    if (!multiple_known(s, schema, key, &units, &scale) || !decimal_of(v, &d))
        return false;
    uint64_t r = 0;
    for (const char *c = d.whole; *c; c++)
        r = (r * 10 + (uint64_t)(*c - '0')) % units;
    size_t f = strlen(d.fraction);
    for (size_t i = 0; i < scale; i++)
        r = (r * 10 + (i < f ? (uint64_t)(d.fraction[i] - '0') : 0)) % units;
    return r == 0 && f <= scale;
}

/* ---- the rule ---- */

/* automaton_combine of any b. */
static int combine(struct automaton *a, struct automaton *b, bool subtract)
{
    if (a->status == STATUS_OK && b->status == STATUS_OK)
        b->status = automaton_minimise(b);
    return automaton_combine(a, b, subtract);
}

static void combine_limit(struct schema *s, const json_t *schema, const char *key, bool strict,
                          struct automaton *a)
{
    const json_t *v = json_object_get(schema, key);
    struct automaton b;
    struct decimal d;
    if (!v || (json_is_boolean(v) && key[0] == 'e')) /* draft-4's boolean: see below */
        return;
    if (!json_is_number(v)) {
        schema_refuse(s, STATUS_FORMAT, schema, "%s is not a number", key);
        return;
    }
    if (!decimal_of(v, &d)) {
        schema_refuse(s, STATUS_LIMIT, schema, "%s has too many digits", key);
        return;
    }
    bool lower = strstr(key, "inimum") != NULL;
    if (strcmp(key, "minimum") == 0)
        strict = json_is_true(json_object_get(schema, "exclusiveMinimum"));
    else if (strcmp(key, "maximum") == 0)
        strict = json_is_true(json_object_get(schema, "exclusiveMaximum"));
    automaton_init(&b, &s->b->budget);
    limit_automaton(&b, &d, lower, strict);
    combine(a, &b, false);
}

static void combine_multiple(struct schema *s, const json_t *schema, const char *key,
                             struct automaton *a)
{
    uint32_t units, scale;
    struct automaton b;
    if (!json_object_get(schema, key) || !multiple_known(s, schema, key, &units, &scale))
        return;
    automaton_init(&b, &s->b->budget);
    multiple_automaton(&b, units, scale);
    combine(a, &b, strcmp(key, SCHEMA_NOT_MULTIPLE) == 0);
}

/* Takes the ways to write one number away. */
static void exclude(struct schema *s, const json_t *v, struct automaton *a)
{
    struct decimal d;
    struct automaton b;
    if (!decimal_of(v, &d))
        return; /* longer than anything that may be written */
    automaton_init(&b, &s->b->budget);
    bool zero = strcmp(d.whole, "0") == 0 && !d.fraction[0];
    uint32_t from = automaton_state(&b), end = automaton_state(&b);
    automaton_empty(&b, d.negative ? automaton_bytes(&b, 0, "-", 1) : 0, from);
    if (zero)
        automaton_edge(&b, 0, '-', '-', from);
    uint32_t at = automaton_bytes(&b, from, d.whole, strlen(d.whole));
    if (!d.fraction[0])
        automaton_empty(&b, at, end);
    at = automaton_bytes(&b, at, ".", 1);
    at = automaton_bytes(&b, at, d.fraction, strlen(d.fraction));
    zero_tail(&b, d.fraction[0] ? at : digit(&b, at, 0, 0), end);
    if (b.status == STATUS_OK)
        b.final[end] = 1;
    combine(a, &b, true);
}

static bool is_plain(const json_t *schema)
{
    static const char *const keys[] = {"minimum",          "maximum",    "exclusiveMinimum",
                                       "exclusiveMaximum", "multipleOf", SCHEMA_NOT_MULTIPLE};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (json_object_get(schema, keys[i]))
            return false;
    }
    size_t i;
    const json_t *v;
    json_array_foreach(json_object_get(schema, SCHEMA_NOT_ENUM), i, v)
    {
        if (json_is_number(v))
            return false;
    }
    return true;
}

/* Any number, with an exponent; any integer. */
static uint32_t plain_rule(struct schema *s, uint32_t types)
{
    uint32_t *known = types == SCHEMA_NUMBER ? &s->number : &s->integer;
    struct automaton a, form;
    if (*known && types != SCHEMA_FRACTION)
        return *known;
    automaton_init(&a, &s->b->budget);
    automaton_init(&form, &s->b->budget);
    uint32_t end = automaton_state(&a), whole = automaton_state(&a);
    form_automaton(&form, types, types == SCHEMA_FRACTION);
    automaton_splice(&a, 0, &form, whole);
    automaton_fini(&form);
    automaton_empty(&a, whole, end);
    if (types == SCHEMA_NUMBER) {
        uint32_t e = automaton_state(&a), sign = automaton_state(&a);
        automaton_edge(&a, whole, 'e', 'e', e);
        automaton_edge(&a, whole, 'E', 'E', e);
        automaton_empty(&a, e, sign);
        automaton_edge(&a, e, '+', '+', sign);
        automaton_edge(&a, e, '-', '-', sign);
        uint32_t one = digit(&a, sign, 0, 9);
        automaton_empty(&a, one, end);
        automaton_empty(&a, digit(&a, one, 0, 9), end);
    }
    if (a.status == STATUS_OK)
        a.final[end] = 1;
    uint32_t rule = schema_rule(s, types == SCHEMA_INT ? "any integer" : "any number", &a);
    if (types != SCHEMA_FRACTION)
        *known = rule;
    return rule;
}

uint32_t schema_number_rule(struct schema *s, const struct schema_conj *c, uint32_t types)
{
    static const char *const limits[] = {"minimum", "maximum", "exclusiveMinimum",
                                         "exclusiveMaximum"};
    struct automaton a;
    bool plain = true;
    for (uint32_t i = 0; i < c->n; i++)
        plain &= is_plain(c->parts[i].schema);
    if (plain)
        return plain_rule(s, types);
    automaton_init(&a, &s->b->budget);
    form_automaton(&a, types, true);
    if (a.status == STATUS_OK) {
        int rc = automaton_minimise(&a);
        (void)rc; /* it stays in a.status */
    }
    for (uint32_t i = 0; i < c->n && !schema_failed(s) && a.status == STATUS_OK; i++) {
        const json_t *x = c->parts[i].schema, *v;
        size_t k;
        for (size_t l = 0; l < 4 && a.status == STATUS_OK; l++)
            combine_limit(s, x, limits[l], l >= 2, &a);
        if (a.status == STATUS_OK)
            combine_multiple(s, x, "multipleOf", &a);
        if (a.status == STATUS_OK)
            combine_multiple(s, x, SCHEMA_NOT_MULTIPLE, &a);
        json_array_foreach(json_object_get(x, SCHEMA_NOT_ENUM), k, v)
        {
            if (json_is_number(v) && a.status == STATUS_OK)
                exclude(s, v, &a);
        }
    }
    if (schema_failed(s)) {
        automaton_fini(&a);
        return 0;
    }
    return schema_rule(s, schema_path(s, c->parts[0].schema), &a);
}
