/* toolcall_internal: what the files behind toolcall.h share. Other files do not include it.
 *
 * toolcall.c has the content, the list of calls and what becomes of text that turns out to be no
 * call; an engine takes the bytes of a call, and says with every byte how it goes on. */
#ifndef BATON_TEXT_TOOLCALL_INTERNAL_H
#define BATON_TEXT_TOOLCALL_INTERNAL_H

#include "common/text/json_scan.h"
#include "common/text/marks.h"
#include "common/text/toolcall.h"

#define TOOLCALL_NAME_MAX  256 /* bytes of a name, a key, an id */
#define TOOLCALL_CALLS_MAX 512 /* calls in one answer */
#define TOOLCALL_DEPTH_MAX 64  /* nesting of arguments that are not JSON */

enum toolcall_engine {
    ENGINE_JSON,   /* {"name": …, "arguments": {…}}, alone or in a list (toolcall_json.c) */
    ENGINE_NAMED,  /* the name between marks, then JSON (toolcall_named.c) */
    ENGINE_XML,    /* name, keys and values between tags (toolcall_xml.c) */
    ENGINE_PYTHON, /* [name(key=value, …), …] (toolcall_python.c) */
    ENGINE_GEMMA,  /* call:name{key:value, …} (toolcall_gemma.c) */
    ENGINE_TREE    /* nested elements (toolcall_tree.c) */
};

/* How ENGINE_NAMED reads the text between the opening mark and the arguments. */
enum toolcall_header {
    HEADER_NAME,     /* NAME sep[0] */
    HEADER_LINE,     /* NAME and a line break; the name "all" is content */
    HEADER_ID_NAME,  /* ID sep[0] NAME sep[1] */
    HEADER_KIMI,     /* functions.NAME:NUMBER sep[0]; all of it is the id */
    HEADER_DEEPSEEK, /* NAME sep[0], or "function" sep[0] NAME, line break, ```json */
    HEADER_MISTRAL   /* NAME [sep[0] ID] [sep[1]], or a JSON list */
};

struct toolcall_xml {
    const char *name_end; /* NULL: a line break or the next tag */
    const char *name_tail;
    const char *key_open, *key_end;
    const char *key_tail;   /* behind key_end, after attributes; NULL: nothing */
    const char *value_open; /* NULL: directly behind the key */
    const char *value_end;
    const char *end; /* of the call */
    bool lines;      /* one line break at either end of a value is not part of it */
};

struct toolcall_format {
    const char *name;
    const char *needles[2]; /* all of them in what a template writes: this format */
    const char *rendered;   /* … or this in what it writes for the probe's call */
    enum toolcall_engine engine;
    const char *open[3]; /* begin a call or a list of calls */
    const char *close;   /* ends it; NULL: the last bracket does */
    const char *wrap[4]; /* around calls, not shown */
    bool bare;           /* the answer itself may be a call: { or [ is its first character */
    bool begun;          /* the prompt ends in open[0] */
    bool key_is_name;    /* ENGINE_JSON: {name: arguments} */
    unsigned id_length;
    enum toolcall_header header;
    const char *sep[2];
    struct toolcall_xml xml;
};

/* What an engine says after a byte. */
enum toolcall_step {
    STEP_MORE, /* goes on */
    STEP_DONE, /* this byte was the last of the call or list */
    STEP_BACK  /* this byte, and all since the last complete call, are not part of one */
};

/* What each engine remembers; t->look, t->text and t->value are there for all of them. */
struct engine_json {
    enum { CALLS_SEEK, CALLS_OBJECT } state;
    enum { MEMBER_SKIP, MEMBER_NAME, MEMBER_ID, MEMBER_ARGUMENTS, MEMBER_OTHER } target;
    struct json_scan scan;
    bool in_list, any, bare;
    bool named, in_value, argued;
};
struct engine_named {
    enum { NAMED_HEADER, NAMED_ID, NAMED_LINE, NAMED_SEEK, NAMED_ARGUMENTS, NAMED_TAIL } state;
    struct json_scan scan;
};
struct engine_xml {
    enum { XML_NAME, XML_NAME_TAIL, XML_BODY, XML_KEY, XML_KEY_TAIL, XML_GAP, XML_VALUE } state;
    const json_t *schema;
    int type;        /* of the value, see toolcall_type */
    bool first;      /* no byte of the value yet */
    bool line;       /* a line break that is part of the value only if more follows */
    unsigned params; /* so far */
};
struct engine_python {
    enum {
        PYTHON_SEEK,
        PYTHON_NAME,
        PYTHON_ARGUMENT,
        PYTHON_KEY,
        PYTHON_EQUALS,
        PYTHON_VALUE,
        PYTHON_STRING,
        PYTHON_ESCAPE,
        PYTHON_CODE,
        PYTHON_NUMBER,
        PYTHON_WORD,
        PYTHON_AFTER
    } state;
    bool in_list, any, bare;
    bool first; /* nothing yet in these brackets */
    bool key;   /* the string is a key of a dictionary */
    char quote;
    unsigned digits; /* of the escape still to come */
    uint32_t code;
    unsigned depth;
    char stack[TOOLCALL_DEPTH_MAX];
};
struct engine_gemma {
    enum {
        GEMMA_NAME,
        GEMMA_KEY,
        GEMMA_VALUE,
        GEMMA_STRING,
        GEMMA_WORD,
        GEMMA_AFTER,
        GEMMA_TAIL
    } state;
    bool first, quoted_key;
    unsigned depth;
    char stack[TOOLCALL_DEPTH_MAX];
};
struct engine_tree {
    enum { TREE_NAME, TREE_TEXT, TREE_TAG, TREE_OPEN, TREE_CLOSE } state;
    unsigned depth;                  /* of the element that is open; 0: the call itself */
    char kind[TOOLCALL_DEPTH_MAX];   /* '{', '[', or '?' while nothing but text came */
    bool filled[TOOLCALL_DEPTH_MAX]; /* it has a member */
    const json_t *schema[TOOLCALL_DEPTH_MAX];
};

struct toolcall {
    const struct toolcall_format *f;
    json_t *tools;
    struct buf *content;
    struct toolcall_call *calls;
    size_t n_calls, cap_calls;
    bool failed; /* out of memory */

    /* toolcall.c */
    struct marks marks; /* open, then wrap */
    uint8_t n_open;
    bool busy;      /* the engine has the bytes */
    bool marked;    /* … since a mark, not since a bracket */
    bool open;      /* the last call is being written */
    bool args_done; /* … and its arguments are complete */
    bool behind;    /* a call is complete, and no content came since */
    bool written;   /* content came */
    struct buf raw; /* text since the last complete call, in case it must become content again */
    struct buf pending; /* blanks and wrappers: of nobody so far */
    size_t blanks;      /* bytes of it before the first wrapper */
    bool wrapped;       /* there is one */
    struct buf gap;     /* blanks before the last call */

    /* the engine's */
    struct marks look;
    struct buf text, value; /* scratch */
    bool as_json;           /* another engine has found JSON, and engine_json goes on */
    union {
        struct engine_json json;
        struct engine_named named;
        struct engine_xml xml;
        struct engine_python python;
        struct engine_gemma gemma;
        struct engine_tree tree;
    } e;
};

/* The engines. bare: the call begins without a mark; its first character is pushed next. */
void engine_json_begin(struct toolcall *t, bool bare);
/* Another engine has found the first character of JSON, [ or {, in its place; in_list: it has seen
 * the [ before. */
enum toolcall_step engine_json_take(struct toolcall *t, char c, bool in_list);
enum toolcall_step engine_json_push(struct toolcall *t, char c);
void engine_named_begin(struct toolcall *t);
enum toolcall_step engine_named_push(struct toolcall *t, char c);
void engine_xml_begin(struct toolcall *t);
enum toolcall_step engine_xml_push(struct toolcall *t, char c);
void engine_python_begin(struct toolcall *t, bool bare);
enum toolcall_step engine_python_push(struct toolcall *t, char c);
void engine_gemma_begin(struct toolcall *t);
enum toolcall_step engine_gemma_push(struct toolcall *t, char c);
void engine_tree_begin(struct toolcall *t);
enum toolcall_step engine_tree_push(struct toolcall *t, char c);

/* A new call, the one that the engine writes now; NULL when there may be no more. */
struct toolcall_call *toolcall_add(struct toolcall *t);
struct toolcall_call *toolcall_last(struct toolcall *t);
/* Its name is complete and is in t->text. False: it cannot be one. */
bool toolcall_name(struct toolcall *t);
/* The call is complete. */
void toolcall_done(struct toolcall *t);
/* One more byte for scratch; false when it gets longer than a name may be. */
bool toolcall_text(struct toolcall *t, char c);
/* Sets the marks of t->look. */
void toolcall_look(struct toolcall *t, const char *a, const char *b, const char *c);
/* Whether the request has a tool of this name. */
bool toolcall_known(const struct toolcall *t, const char *name, size_t n);
/* The schema of a tool's parameters, or NULL; of one property of an object schema; of the items of
 * an array schema. */
const json_t *toolcall_schema(const struct toolcall *t, const struct buf *name);
const json_t *toolcall_property(const json_t *schema, const char *key, size_t n);
/* What a value must be: 1 a string, 0 something else, -1 not known. */
int toolcall_type(const json_t *schema);
/* Appends one byte as part of a JSON string. */
void toolcall_escape(struct buf *out, char c);
void toolcall_quote(struct buf *out, const char *p, size_t n);
/* Appends what p[0, n) says as a JSON value: a string, unless type allows another and it is one. */
void toolcall_value(struct buf *out, const char *p, size_t n, int type);
static inline bool toolcall_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
static inline bool toolcall_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || (unsigned char)c >= 0x80;
}

#endif
