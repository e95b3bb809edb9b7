/* jinja_str: strings of chat templates: building them with the origin of every byte, slicing,
 * searching, Unicode properties and case. All offsets are bytes unless they say characters. */
#ifndef BATON_TEXT_JINJA_STR_H
#define BATON_TEXT_JINJA_STR_H

#include "common/text/jinja_value.h"

/* A string over bytes that live as long as the run. */
struct jstr *jstr_loan(struct jrt *rt, const char *p, size_t n, bool trusted);
struct jstr *jstr_literal(struct jrt *rt, const char *s); /* trusted, static */
/* Computes what is otherwise computed on demand, and detaches s from its buffer: afterwards s does
 * not change any more and threads may share it. */
struct jstr *jstr_freeze(struct jrt *rt, struct jstr *s);
/* Bytes from..to of s, with their origins. */
struct jstr *jstr_sub(struct jrt *rt, const struct jstr *s, size_t from, size_t to);
/* a + b, plain text. */
struct jstr *jstr_concat(struct jrt *rt, struct jstr *a, struct jstr *b);
struct jstr *jstr_repeat(struct jrt *rt, const struct jstr *s, int64_t times);
/* The same text, marked safe or not. */
struct jstr *jstr_mark(struct jrt *rt, struct jstr *s, bool markup);
/* HTML-escaped and marked safe; s itself when it is already. */
struct jstr *jstr_escape(struct jrt *rt, struct jstr *s);
bool jstr_equal(const struct jstr *a, const struct jstr *b);
bool jstr_is(const struct jstr *s, const char *text);
int jstr_compare(const struct jstr *a, const struct jstr *b);
uint32_t jstr_hash(struct jstr *s);
/* True when all bytes are the template's own. */
bool jstr_trusted(const struct jstr *s);
size_t jstr_chars(struct jrt *rt, struct jstr *s);
/* Byte offset of character i (i <= jstr_chars). */
size_t jstr_offset(struct jrt *rt, struct jstr *s, size_t i);
/* First (last) place of needle within from..to, or SIZE_MAX. */
size_t jstr_find(struct jrt *rt, const struct jstr *s, const struct jstr *needle, size_t from,
                 size_t to);
size_t jstr_rfind(struct jrt *rt, const struct jstr *s, const struct jstr *needle, size_t from,
                  size_t to);

/* -- building -- */
void jbuf_bytes(struct jrt *rt, struct jbuf *b, const char *p, size_t n, bool trusted);
void jbuf_puts(struct jrt *rt, struct jbuf *b, const char *s, bool trusted);
void jbuf_code(struct jrt *rt, struct jbuf *b, int32_t code, bool trusted);
void jbuf_sub(struct jrt *rt, struct jbuf *b, const struct jstr *s, size_t from, size_t to);
void jbuf_str(struct jrt *rt, struct jbuf *b, const struct jstr *s);
/* The buffer's text; b must not be used again. */
struct jstr *jbuf_finish(struct jrt *rt, struct jbuf *b);
/* Origin of the byte at off. */
bool jstr_trusted_at(const struct jstr *s, size_t off);

/* -- characters -- */
/* Decodes the character at p[0..n), n > 0, of valid UTF-8; returns its length. */
unsigned jutf8_decode(const char *p, size_t n, int32_t *code);
bool jutf8_valid(const char *p, size_t n);
unsigned jutf8_encode(int32_t code, char out[4]);
bool jchar_space(int32_t c); /* str.isspace */
bool jchar_alpha(int32_t c);
bool jchar_decimal(int32_t c);
bool jchar_digit(int32_t c);
bool jchar_numeric(int32_t c);
bool jchar_upper(int32_t c);
bool jchar_lower(int32_t c);
bool jchar_title(int32_t c);
bool jchar_cased(int32_t c);
bool jchar_printable(int32_t c);
bool jchar_word(int32_t c);     /* \w */
bool jchar_name(int32_t c);     /* may stand in a template's identifier */
bool jchar_line_end(int32_t c); /* where str.splitlines splits */
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_TITLE, JCASE_FOLD, JCASE_SWAP };
/* Appends the character of s at byte off in the given case (lower: final sigma included); returns
 * the length it had. */
unsigned jbuf_case(struct jrt *rt, struct jbuf *b, const struct jstr *s, size_t off,
                   enum jcase kind);
struct jstr *jstr_case(struct jrt *rt, const struct jstr *s, enum jcase kind);

enum jstrip { JSTRIP_LEFT = 1, JSTRIP_RIGHT = 2, JSTRIP_BOTH = 3 };
/* chars NULL: white space. Keeps the mark. */
struct jstr *jstr_strip(struct jrt *rt, const struct jstr *s, const struct jstr *chars,
                        enum jstrip sides);
/* count < 0: all. */
struct jstr *jstr_replace(struct jrt *rt, const struct jstr *s, const struct jstr *old,
                          const struct jstr *with, int64_t count);
struct jlist *jstr_splitlines(struct jrt *rt, const struct jstr *s, bool keep_ends);

/* -- values as text -- */
/* str(v) into b. */
void jbuf_value(struct jrt *rt, struct jbuf *b, struct jvalue v);
void jbuf_repr(struct jrt *rt, struct jbuf *b, struct jvalue v);
struct jstr *jvalue_str(struct jrt *rt, struct jvalue v);
/* repr of a float into buf[40]; returns its length. */
int jfloat_repr(double f, char buf[40]);

struct jjson_style {
    bool ascii, sort_keys;
    const char *indent; /* NULL: one line */
    size_t n_indent;
    struct jstr *item_sep, *key_sep; /* NULL: Python's defaults */
};
/* json.dumps(v). */
struct jstr *jvalue_json(struct jrt *rt, struct jvalue v, const struct jjson_style *style);

/* s.format(…) and s % v. */
struct jstr *jstr_format(struct jrt *rt, const struct jstr *s, const struct jargs *a);
struct jstr *jstr_percent(struct jrt *rt, const struct jstr *s, struct jvalue v);

#endif
