/* jinja_ast: tokens and syntax trees of chat templates, and the two steps that make them.
 *
 * All of it lives in the arena of the struct jrt that compiles; errors unwind as jinja_value.h
 * says. Depth is bounded twice: the parser counts its own nesting, and every node knows the depth
 * of its subtree, so that long chains (a + b + c + …) cannot overflow the evaluator's stack. */
#ifndef BATON_TEXT_JINJA_AST_H
#define BATON_TEXT_JINJA_AST_H

#include "common/text/jinja_value.h"

#define JINJA_SOURCE_MAX     (4u << 20)
#define JINJA_NESTING_MAX    100 /* of brackets and blocks in the source */
#define JINJA_TREE_DEPTH_MAX 500

enum jtoken_type {
    JT_EOF,
    JT_DATA,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OPERATOR /* op: the operator's characters packed, see JOP */
};
/* An operator of one or two characters as a number: '+', JOP('=', '='). */
#define JOP(a, b) ((a) << 8 | (b))

struct jtoken {
    enum jtoken_type type;
    unsigned line;
    int op;
    struct jstr *s; /* name, string or data */
    struct jvalue number;
};

/* Source to tokens, the last one JT_EOF (which the parser never moves over); trim_blocks and
 * lstrip_blocks as transformers sets them. */
struct jtoken *jinja_lex(struct jrt *rt, const char *source, size_t n);

enum jnode_kind {
    /* expressions */
    JN_CONST,    /* value */
    JN_NAME,     /* sym */
    JN_TUPLE,    /* list */
    JN_LIST,     /* list */
    JN_DICT,     /* list: key, value, key, … */
    JN_ATTR,     /* a.name */
    JN_ITEM,     /* a[b] */
    JN_SLICE,    /* a[b:c:d], each may be NULL */
    JN_CALL,     /* a(list, kw, *b, **c) */
    JN_FILTER,   /* a | name(list, kw, *b, **c) */
    JN_TEST,     /* a is name(list, kw, *b, **c) */
    JN_NOT,      /* not a */
    JN_NEG,      /* -a */
    JN_POS,      /* +a */
    JN_AND,      /* a and b */
    JN_OR,       /* a or b */
    JN_COND,     /* b if a else c; c may be NULL */
    JN_COMPARE,  /* list[0] ops[0] list[1] ops[1] list[2] … */
    JN_BINARY,   /* a op b */
    JN_CONCAT,   /* list[0] ~ list[1] ~ … */
    JN_CAPTURED, /* the text of a filter block */
    /* targets of assignments: JN_NAME, JN_TUPLE and */
    JN_NSREF, /* sym.name */
    /* statements */
    JN_TEXT,         /* value */
    JN_PRINT,        /* a */
    JN_IF,           /* list of JN_BRANCH */
    JN_BRANCH,       /* if a (NULL: else) then list */
    JN_FOR,          /* for a in b if c: list, else other */
    JN_SET,          /* a = b */
    JN_SET_BLOCK,    /* a = list's text, filtered by b (NULL: plain) */
    JN_MACRO,        /* sym, params, list */
    JN_CALL_BLOCK,   /* calls a with caller = (params, list) */
    JN_FILTER_BLOCK, /* a over list's text */
    JN_WITH,         /* other[i] = values[i]: list */
    JN_SCOPE,        /* list in a scope of its own */
    JN_BREAK,
    JN_CONTINUE
};

enum { JCMP_EQ, JCMP_NE, JCMP_LT, JCMP_LE, JCMP_GT, JCMP_GE, JCMP_IN, JCMP_NOT_IN };

struct jnode_list {
    struct jnode **v;
    size_t n, cap;
};
struct jnode_kw {
    struct jstr *name;
    struct jnode *value;
};

/* What a call node has besides its callee. */
struct jcall {
    struct jnode_kw *kw;
    size_t n_kw;
    struct jnode *star, *star_star;
};
/* What a macro or call block declares. */
struct jsignature {
    const char *name;
    struct jnode_list params;   /* JN_NAME */
    struct jnode_list defaults; /* of the last params */
    bool uses_caller, uses_kwargs, uses_varargs;
    uint32_t caller_sym, kwargs_sym, varargs_sym;
};

struct jnode {
    enum jnode_kind kind;
    int op; /* JN_BINARY: JOP number */
    unsigned line;
    unsigned depth;
    uint32_t sym;
    bool recursive; /* JN_FOR */
    struct jstr *name;
    struct jvalue value;
    struct jnode *a, *b, *c, *d;
    struct jnode_list list, other, values;
    uint8_t *ops;           /* JN_COMPARE */
    struct jcall *call;     /* JN_CALL, JN_FILTER, JN_TEST; NULL: no keywords or stars */
    struct jsignature *sig; /* JN_MACRO, JN_CALL_BLOCK */
};

/* A compiled template: immutable, shared by any number of renderings. */
struct jtemplate {
    struct jnode_list body;
    struct jstr **symbols; /* names by number */
    size_t n_symbols;
    uint32_t sym_loop;
};

/* Tokens to tree. */
struct jtemplate *jinja_parse(struct jrt *rt, const struct jtoken *tokens);

/* -- between the two files of the parser -- */
struct jparser {
    struct jrt *rt;
    const struct jtoken *t; /* the next token */
    struct jtemplate *out;
    struct jdict *symbols; /* name -> number */
    size_t cap_symbols;
    unsigned nesting;
    unsigned loops;              /* enclosing loops of the current macro */
    struct jmacro_frame *macros; /* enclosing macro bodies, innermost first */
};
struct jmacro_frame {
    struct jmacro_frame *outer;
    struct jsignature *sig;
};

_Noreturn void jparse_fail(struct jparser *p, const char *expected);
struct jnode *jparse_node(struct jparser *p, enum jnode_kind kind, unsigned line);
/* Notes that child is below n; child may be NULL. Returns child. */
struct jnode *jparse_child(struct jparser *p, struct jnode *n, struct jnode *child);
void jparse_push(struct jparser *p, struct jnode *n, struct jnode_list *l, struct jnode *child);
uint32_t jparse_symbol(struct jparser *p, struct jstr *name);
void jparse_enter(struct jparser *p); /* one level of nesting, left by p->nesting-- */
bool jparse_at_op(const struct jparser *p, int op);
bool jparse_at_name(const struct jparser *p, const char *name);
bool jparse_skip_op(struct jparser *p, int op);
bool jparse_skip_name(struct jparser *p, const char *name);
void jparse_expect_op(struct jparser *p, int op);
struct jstr *jparse_expect_name(struct jparser *p);

struct jnode *jparse_expression(struct jparser *p);
/* An expression or, with commas, a tuple; ends before the name `end` too (may be NULL). */
struct jnode *jparse_tuple(struct jparser *p, bool with_condition, const char *end);
struct jnode *jparse_target(struct jparser *p, bool with_namespace, const char *end);
struct jnode *jparse_target_name(struct jparser *p);
/* name(args) after a "|"; input becomes its operand. */
struct jnode *jparse_filter(struct jparser *p, struct jnode *input);

#endif
