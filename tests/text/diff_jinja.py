#!/usr/bin/env python3
"""Differential test of the chat-template interpreter against Python's jinja2.

    tests/text/diff_jinja.py [--seed N] [--count N] [--command "build/bin/baton-text render"]
    tests/text/diff_jinja.sh     the same in the tests' own environment; make check runs it
    tests/text/diff_jinja.py --write tests/data/templates/expressions.json

Needs the jinja2 package. Renders a fixed list of expressions and `count` generated templates with
both, in the settings of the transformers library, and compares: the same text, or both refuse.
Prints every difference with what reproduces it and exits 1 when there is one. --write records what
jinja2 gives for the fixed list instead, for the unit test.
"""
import argparse
import datetime
import json
import random
import shlex
import subprocess
import sys
import tempfile

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1735787045  # 2025-01-02 03:04:05 UTC


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def strftime_now(fmt):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(fmt)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = strftime_now
    return env


CONTEXT = {
    "i": 7, "n": -3, "z": 0, "f": 2.5, "g": -0.125, "big": 123456789012, "t": True, "no": None,
    "s": "Hello, World", "e": "", "u": "Größe ΣΑΣ ﬁne 你好 👩‍💻 \"q\" 'a' <b>&", "w": "  two  words\n\tx ",
    "nl": "a\nb\r\nc\n\nd", "num": " 42 ", "hex": "0x1f", "fl": "3.75",
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "m": [1, "x", None, 2.0, True, [1, 2], {"k": "v"}],
    "el": [], "d": {"b": 1, "a": "x", "C": None, "items": [1, 2]}, "ed": {},
    "p": [{"name": "Bo", "age": 3, "tags": ["x"]}, {"name": "al", "age": 10, "tags": []},
          {"name": "Cy", "age": 3, "on": True}],
    "nest": {"a": {"b": [{"c": "deep"}]}}, "bos_token": "<s>",
}

FIXED = r"""
i + 1 ;; i - n ;; i * 2.5 ;; i / 2 ;; i // 2 ;; n // 2 ;; i % 4 ;; n % 4 ;; i % -4 ;; f % 2 ;;
n % 2.5 ;; 2 ** 10 ;; 2 ** -1 ;; f ** 2 ;; -i ** 2 ;; 2 ** 3 ** 2
1e16 ;; 1e15 ;; 123456.789 ;; 0.1 + 0.2 ;; 1e-5 ;; 0.0001 ;; 1e22 ;; 1.0 ;; 100.0 ;; 5e-324 ;;
1.7976931348623157e308 ;; -0.0 ;; 1_000 ;; 0x1F ;; 0b11 ;; 0o17 ;; 1_0.5
7 // 0 ;; 7 % 0 ;; 7 / 0 ;; 1.5 // 0.4 ;; -1.5 // 0.4 ;; 7.0 // 2 ;; true + true ;; true * 3
s + 1 ;; s ~ 1 ;; s ~ none ~ true ~ 1.5 ~ l ~ d ;; "a" * 3 ;; 3 * "ab" ;; "a" * -1 ;; l * 2 ;;
l + [4] ;; (1, 2) + (3,) ;; l + (1,)
s[0] ;; s[-1] ;; s[99] ;; s[1:4] ;; s[::-1] ;; s[::2] ;; s[5:2:-1] ;; s[-3:] ;; s[:-3] ;; u[0:5] ;;
u[::-1] ;; u[-4] ;; l[0] ;; l[-1] ;; l[9] ;; l[1:] ;; l[::-1] ;; l[::0] ;; (1,2,3)[1:]
d.a ;; d["a"] ;; d.zz ;; d["zz"] ;; d.items ;; d["items"] ;; d.items() ;; d.keys() ;; d.values() ;;
d.get("a") ;; d.get("zz") ;; d.get("zz", 5) ;; d.get([]) ;; nest.a.b[0].c ;; nest.x.y
d["x"]["y"] ;; zz ;; zz.x ;; zz[0] ;; zz + 1 ;; zz ~ 1 ;; zz == zzz ;; zz is defined ;;
zz is undefined ;; not zz ;; zz in l ;; 1 in zz ;; zz or "default" ;; zz and 1
1 < 2 < 3 ;; 1 < 2 > 3 ;; 1 == 1.0 ;; true == 1 ;; "a" < "b" ;; "a" < 1 ;; [1,2] < [1,3] ;;
(1,) < (1,2) ;; none == none ;; none < 1 ;; [1] == (1,) ;; d == d ;; {"a":1} == {"a":1.0}
1 in l ;; "x" in d ;; "a" in d ;; "ell" in s ;; 1 in s ;; none in l ;; not 1 in l ;; 1 not in l ;;
1 in 5 ;; "" in "" ;; [1] in m
i is odd ;; i is even ;; f is odd ;; i is divisibleby 7 ;; i is number ;; t is number ;;
s is string ;; l is sequence ;; d is mapping ;; d is sequence ;; s is iterable ;; i is iterable ;;
no is none ;; t is boolean ;; t is true ;; 1 is true ;; no is false ;; i is integer ;;
t is integer ;; f is float ;; s is lower ;; "abc" is lower ;; "ABC" is upper ;; "1" is lower ;;
i is eq 7 ;; i is equalto(7) ;; i is gt 3 ;; i is in l ;; 1 is in l ;; "trim" is filter ;;
"foo" is filter ;; "odd" is test ;; d.items is callable ;; s is callable ;; l is sameas l ;;
zz is sequence ;; zz is iterable ;; d.items() is sequence ;; d.items() is iterable ;;
range(3) is sequence ;; l is not none ;; i is ge(7) ;; i is lt 8 ;; no is not defined
s|upper ;; s|lower ;; u|upper ;; u|lower ;; u|title ;; u|capitalize ;; s|title ;;
"foo-bar (baz) [x] {y} <z>"|title ;; "ǆ ß ŉ"|upper ;; "İI"|lower ;; "ΑΣ. ΑΣΑ"|lower ;;
"ῼ ǰ"|upper
w|trim ;; w|trim("x ") ;; w|length ;; u|length ;; l|length ;; d|length ;; i|length ;; no|length ;;
zz|length ;; d.items()|length ;; (l|map("string"))|length
l|join ;; l|join(", ") ;; m|join("-") ;; p|join(",", attribute="name") ;;
p|map(attribute="name")|join("/") ;; p|map(attribute="on", default="?")|join ;; s|join("|") ;;
d|join ;; no|join ;; p|map(attribute="tags.0")|join(",")
l|first ;; l|last ;; el|first ;; s|first ;; d|first ;; l|sort ;; l|sort(reverse=true) ;; ls|sort ;;
ls|sort(case_sensitive=true) ;; p|sort(attribute="age,name")|map(attribute="name")|list ;;
m|sort ;; ls|unique|list ;; ls|unique(true)|list ;; l|sum ;; p|sum(attribute="age") ;;
p|sum(attribute="age", start=5) ;; l|min ;; l|max ;; ls|max ;; el|max ;; ls|min(true)
d|dictsort ;; d|dictsort(true) ;; d|dictsort(by="value") ;;
{"b":1,"a":2}|dictsort(by="value", reverse=true) ;; d|items|list ;; zz|items|list ;;
l|items|list ;; d|list ;; s|list ;; no|list ;; zz|list
p|selectattr("on")|map(attribute="name")|list ;; p|selectattr("age", "eq", 3)|list|length ;;
p|rejectattr("on")|list|length ;; p|rejectattr("on", "defined")|list|length ;;
l|select("odd")|list ;; l|reject("odd")|list ;; m|select|list ;; l|select("gt", 1)|list ;;
l|select("nope")|list ;; p|selectattr("name", "in", ["Bo","Cy"])|list|length
l|reverse|list ;; s|reverse ;; d|reverse|list ;; (l|map("string"))|reverse|list ;;
l|batch(2)|list ;; l|batch(2, 0)|list ;; l|slice(2)|list ;; l|slice(2, 9)|list ;;
p|groupby("age")|list|length ;; ls|groupby(0)|list
num|int ;; hex|int ;; hex|int(base=16) ;; "12abc"|int ;; "12abc"|int(-1) ;; "3.9"|int ;; f|int ;;
no|int ;; t|int ;; "1_000"|int ;; ""|int ;; l|int(5) ;; "-7"|int ;; "0b101"|int(0, 2) ;;
"z"|int(0, 36) ;; fl|float ;; "x"|float ;; "x"|float(1.5) ;; "1e3"|float ;; "inf"|float ;;
no|float ;; num|float
42.55|round ;; 42.55|round(1) ;; 42.5|round ;; 43.5|round ;; -2.5|round ;;
42.55|round(1, "floor") ;; 42.55|round(1, "ceil") ;; i|round ;; 1234|round(-2) ;; i|abs ;; n|abs ;;
g|abs ;; s|abs ;; 2.675|round(2) ;; f|round(0, "foo")
zz|default ;; zz|default("x") ;; e|default("x") ;; e|default("x", true) ;; no|default("x") ;;
no|default("x", boolean=true) ;; d.zz|default("q") ;; zz|d(1) ;; nest.q|default({}) ;; i|default
s|replace("l", "L") ;; s|replace("l", "L", 1) ;; s|replace("", "-") ;; i|replace(7, 8) ;;
s|replace("o", "0")|replace("W", "") ;; e|replace("", "x") ;; u|replace("ö", "oe")
nl|indent ;; nl|indent(2, true) ;; nl|indent(2, false, true) ;; nl|indent(">>") ;; e|indent ;;
s|indent(first=true) ;; i|indent
s|tojson ;; u|tojson ;; d|tojson ;; m|tojson ;; nest|tojson(indent=2) ;; el|tojson(indent=2) ;;
ed|tojson ;; f|tojson ;; 1e16|tojson ;; t|tojson ;; no|tojson ;; zz|tojson ;;
d|tojson(separators=(",", ":")) ;; {"b":1,"a":2}|tojson(sort_keys=true) ;;
u|tojson(ensure_ascii=true) ;; (1,2)|tojson ;; {1:2, none:3, true:4, 1.5:5}|tojson ;;
range(3)|tojson ;; d.items()|tojson ;; "\u0001\x7f\b\f"|tojson ;; m|tojson(indent=0) ;;
m|tojson(indent="--") ;; {(1,2):3}|tojson
"<a>"|escape ;; "<a>"|safe ;; "<a>"|safe + "<b>" ;; "<b>" + ("<a>"|safe) ;; ("<a>"|safe) ~ "<b>" ;;
("<a>"|escape)|escape ;; ("%s"|safe) % "<" ;; ("{}"|safe).format("<") ;;
("<x>"|safe)|upper + "<" ;; ("a<"|safe)|replace("a", "<") + "<" ;; ("<"|safe).join(["<", "a"]) ;;
["<", "a"]|join("<"|safe) + "<" ;; ("<a>"|safe)[1:] + "<" ;; "&<>\"'"|forceescape ;;
("<"|safe)|string + "<" ;; ("<"|safe) is escaped ;; (("<"|safe) + "b").upper() + ">"
"a%sb" % 1 ;; "%s-%s" % (1, "x") ;; "%d" % 3.7 ;; "%5d|%-5d|%05d" % (1, 2, 3) ;; "%.2f" % f ;;
"%5.1f" % f ;; "%x %X %o" % (255, 255, 8) ;; "%r" % "a" ;; "%%" % () ;; "%s" % [1] ;;
"%(a)s" % d ;; "%s" % d ;; "%s %s" % 1 ;; "%d" % "x" ;; "%+d % d" % (1, 2) ;; "%e" % 12345.678 ;;
"%g" % 0.00001 ;; "%c" % 65 ;; "%c" % "x" ;; "%*d" % (5, 1) ;; "%s"|format(1) ;;
"%s %s"|format("a", 2) ;; "%(x)s"|format(x=1) ;; "%.3s" % "abcdef" ;; "%10s|" % "ab" ;;
"%-10s|" % "ab"
"{} {}".format(1, 2) ;; "{0}{1}{0}".format("a", "b") ;; "{x}".format(x=5) ;;
"{:>5}|{:<5}|{:^5}".format(1, 2, 3) ;; "{:05d}".format(42) ;; "{:,}".format(1234567) ;;
"{:.2f}".format(3.14159) ;; "{:x}".format(255) ;; "{:#x}".format(255) ;; "{!r}".format("a") ;;
"{0[0]} {0[1]}".format(l) ;; "{a.b}".format(a={"b": 1}) ;; "{{}}".format() ;; "{".format() ;;
"{} {}".format(1) ;; "{:*^9}".format("mid") ;; "{:.3}".format("abcdef") ;; "{:%}".format(0.25) ;;
"{:e}".format(1234.5) ;; "{:g}".format(1e10) ;; "{:b}".format(5) ;; "{:+}".format(5) ;;
"{:{w}}|".format(1, w=4) ;; "{:s}".format(1) ;; "{:d}".format("x") ;; "{:_}".format(1234567) ;;
"{}".format(none) ;; "{:5}|".format(true) ;; "{:.1f}".format(5) ;; "{:.2}".format(1.234)
s.upper() ;; s.lower() ;; s.title() ;; s.capitalize() ;; s.swapcase() ;; u.casefold() ;;
s.startswith("He") ;; s.startswith(("x", "He")) ;; s.endswith("d") ;; s.startswith("e", 1) ;;
s.find("o") ;; s.find("o", 5) ;; s.rfind("o") ;; s.find("zz") ;; s.index("zz") ;; s.index("W") ;;
u.find("你") ;; s.count("l") ;; s.count("") ;; s.replace("l", "") ;; s.replace("l", "x", 1) ;;
s.split() ;; s.split(",") ;; w.split() ;; w.split(" ") ;; w.split(none, 1) ;; s.split("l", 1) ;;
s.rsplit("l", 1) ;; w.rsplit(none, 1) ;; w.rsplit() ;; s.split("") ;; nl.splitlines() ;;
nl.splitlines(true) ;; s.partition(",") ;; s.rpartition("o") ;; s.partition("zz") ;;
s.rpartition("zz") ;; "-".join(["a","b"]) ;; "-".join([1]) ;; "x".join("abc") ;; s.strip("Hd") ;;
w.strip() ;; w.lstrip() ;; w.rstrip() ;; "xxaxx".strip("x") ;; "ab".center(7) ;; "ab".center(6) ;;
"abc".center(6) ;; "ab".ljust(5, ".") ;; "ab".rjust(5) ;; "-5".zfill(4) ;; "5".zfill(3) ;;
s.removeprefix("He") ;; s.removesuffix("ld") ;; "a\tb".expandtabs(4) ;; s.isalpha() ;;
"abc".isalpha() ;; "12".isdigit() ;; "²".isdigit() ;; "½".isnumeric() ;; "a1".isalnum() ;;
" ".isspace() ;; "Ab Cd".istitle() ;; "AB".isupper() ;; "ab1".islower() ;; "é".isascii() ;;
s.foo ;; s.foo() ;; s.split(sep=",") ;; s.split(",", maxsplit=1)
l.append(1) ;; l.pop() ;; d.pop("a") ;; d.update({}) ;; l.index(1) ;; l.index(9) ;; l.count(1) ;;
d.copy() ;; l.copy() ;; s.__class__ ;; l.__len__() ;; d.__zz ;; f.is_integer() ;;
2.0.is_integer() ;; s._x ;; d.setdefault("a")
range(5) ;; range(5)|list ;; range(1, 10, 3)|list ;; range(5, 0, -2)|list ;; range(0)|list ;;
range(3)[1] ;; range(3)[9] ;; range(10)[2:5]|list ;; range(1, 1, 0) ;; 2 in range(3) ;;
range(3)|length ;; range(200000)
dict(a=1, b=2) ;; dict([("a", 1)]) ;; dict({"a": 1}, b=2) ;; namespace(a=1).a ;;
namespace(a=1).b ;; joiner(",") ;; cycler("a", "b").next() ;; dict() ;; {"a": 1, "a": 2} ;;
{[]: 1} ;; {1: "a", 1.0: "b", true: "c"}
1 if t else 2 ;; 1 if no else 2 ;; 1 if no ;; (1 if no) is defined ;;
1 if no else 2 if no else 3 ;; "a" if s == "x" else "b" ;; t and s ;; no or s ;; not t or t ;;
not (t and no)
[1, 2,] ;; (1,) ;; () ;; (1) ;; [] ;; {} ;; {"a": [1, {"b": (1, 2)}]} ;;
["a", 'it\'s', "q\"", "both'\""] ;; ["\n\t\x01é\u200b"] ;; [none, true, 1.0] ;; "a" "b" ;;
'\x41\u00e9\n\101' ;; "\q"
"a b"|urlencode ;; {"a": "b c", "d": "é/"}|urlencode ;; "é/ &"|urlencode ;;
"foo bar baz qux"|truncate(9) ;; "foo bar baz qux"|truncate(9, true) ;;
"foo bar baz qux"|truncate(11, false, "...", 0) ;; s|truncate ;; "a b-c d_e"|wordcount ;;
"x"|center(5) ;; d|attr("a") ;; d|attr("get") ;; s|attr("upper") ;; "a"|string ;; i|string ;;
no|string
l|map("upper")|list ;; ls|map("upper")|list ;; ls|map("replace", "a", "b")|list ;;
ls|map("nope")|list ;; l|map|list ;; s|nope ;; s is nope ;; nope(1) ;; s(1) ;; i() ;;
strftime_now("%Y-%m-%d %H:%M:%S") ;; strftime_now("%d %b %Y %j %-d %%") ;; raise_exception("no") ;;
loop ;; loop.index ;; caller() ;; varargs
true ;; True ;; false ;; none ;; None ;; "%s" % (1,) ;; l|list is sameas l ;; [l, l] ;;
u|tojson|length ;; -f ;; +i ;; -s ;; - - 1 ;; not not 1 ;; -1 | abs ;; 1.5|string ;;
"abc"[1:][0] ;; {"a":1}.a ;; [1,2][0] ;; (l)[0] ;; "x".upper().lower() ;; (s|upper)[0] ;;
s|upper()[0]
m[5][0] ;; m[6].k ;; m[6]["k"] ;; l[true] ;; l["x"] ;; l[none] ;; l[1.0] ;; s["x"] ;; i["x"] ;;
no["x"] ;; no.x ;; no[1:] ;; d[1:] ;; i[1:] ;; l["a":] ;; {1: 2}[1] ;; {1: 2}[true] ;;
{none: 1}[none] ;; p.0.name ;; p[0].tags[0] ;; l.0 ;; l.9
"a" is string and "b" is string ;; 1 is number or foo ;; i is not number ;; i == 7 and not no ;;
"x" in "xyz" and 1 in l ;; l is sequence and l is not string ;; i > 3 and i < 9 ;;
i is odd == true
""".strip()

STATEMENTS = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ x }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('a','b') }}{{ loop.changed(x > 1) }}{{ loop.depth }}{% else %}none{% endfor %}",
    "{% for x in el %}{{ x }}{% else %}none{{ loop is defined }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}:{{ x }} {% else %}no{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}no{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ k is defined }}",
    "{% for k, v in d|items %}{{ loop.length }}{{ k }}={{ v }};{% endfor %}",
    "{% for a in p %}{% for b in p %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a in 5 %}{{ a }}{% endfor %}",
    "{% for a in zz %}{{ a }}{% else %}empty{% endfor %}",
    "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x > 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(n=0) %}{% for y in l %}{% set ns.n = ns.n + y %}{% endfor %}{{ ns.n }}{{ ns }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = 'xy' %}{{ c }}{{ d2 }}",
    "{% set x %}text {{ i }}{% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]",
    "{% set zz.x = 1 %}",
    "{% if i > 3 %}a{% elif i > 1 %}b{% else %}c{% endif %}{% if no %}x{% elif t %}y{% endif %}",
    "{% macro f(a, b=2, c=a) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f() }}{{ f(1, 2, 3) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}{{ f.name }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(3) %}{{ y }}!{% endcall %}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}{{ i }}{% endcall %}{{ f() }}",
    "{% set v = 1 %}{% macro f() %}{{ v }}{% endmacro %}{% set v = 2 %}{{ f() }}",
    "{% for x in l %}{% macro g() %}{{ x }}{% endmacro %}{{ g() }}{% endfor %}{{ g is defined }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | title %}aaa{% endfilter %}",
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}{% with %}{{ i }}{% endwith %}",
    "{% for x in [[1, [2, 3]], [4]] recursive %}{{ x if x is number else '' }}{% if x is sequence %}({{ loop(x) }}{{ loop.depth }}){% endif %}{% endfor %}",
    "{% generation %}{% set q = 1 %}{{ q }}{{ i }}{% endgeneration %}{{ q is defined }}",
    "{% raw %}{{ x }} {% if %}{% endraw %}|{%- raw -%}  a  {%- endraw -%}|",
    "{# c #}a{#- c -#} b {#+ c +#}\n c",
    "  {% if t %}\n  x\n  {% endif %}\n y\n",
    "  {%+ if t %}\n  x\n  {%- endif -%}\n y\n\n",
    "  {{ i }}\n  {{- i -}}  \n z\n\n",
    "a\r\nb\rc\n",
    "{%if t%}a{%endif%}{%-if t-%} b {%-endif-%} c",
    "{% set x = [1, 2,\n 3] %}\n{{ x\n }}\n",
    "{{ '}}' }}{{ \"%}\" }}{{ {'a': {'b': 1}}['a']['b'] }}",
    "{% print i, s %}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}",
    "{% if t %}{% set inner = 5 %}{% endif %}{{ inner }}",
    "{% set items = d.items() %}{{ items|length }}{% for k, v in items %}{{ k }}{% endfor %}{% for k, v in items %}{{ k }}{% endfor %}",
    "{% set it = l|map('string') %}{{ it|join }}{{ it|join }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}",
    "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% if l|selectattr('x') %}yes{% else %}no{% endif %}",
    "{% for x in l %}{% if loop.first %}{% set first = x %}{% endif %}{{ first }}{% endfor %}",
    "{% set l2 = l + [9] %}{{ l2[-1] }}{% set l2 = l2 + [8] %}{{ l2 }}",
    "{% for m in p %}{{ m.name }}{{ ', ' if not loop.last else '.' }}{% endfor %}",
    "{% set ns = namespace(prev='') %}{% for x in ls if x != ns.prev %}{{ x }}{% set ns.prev = 'c' %}{% endfor %}",
    "{% if %}x{% endif %}", "{% for %}", "{{ }}", "{{ 1 + }}", "{% endif %}", "{% if t %}", "{{ 'a }}", "{{ (1 }}",
    "{% set true = 1 %}", "{% foo %}", "{{ a b }}", "{% for x in l %}{% endif %}", "{# open", "{% raw %}x", "{{ 1 }",
    "{% macro f(a, a2=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ f(**d, *l) }}", "{% break %}", "{{ [1, }}", "{{ {1} }}",
    "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 3, 'b': 4}) }}{{ f(1, **{'b': 4}) }}",
    "{% set s2 = s %}{% set s2 = s2 ~ '!' %}{% set s3 = s2 ~ '?' %}{% set s4 = s2 ~ '#' %}{{ s2 }}{{ s3 }}{{ s4 }}{{ s }}",
    "{% for x in l %}{% for y in l if y != x %}{{ x }}{{ y }}{{ loop.last }} {% endfor %}{% endfor %}",
    "{% for x in l %}{% with x = x + 1 %}{% if x > 3 %}{% break %}{% endif %}{{ x }}{% endwith %}{% endfor %}",
    "{%- for x in l -%}\n {{ x }}\n {%- endfor -%}\n end",
    "{% macro a() %}{% set x = 5 %}{{ b() }}{% endmacro %}{% macro b() %}{{ x is defined }}{% endmacro %}{{ a() }}",
    "{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}",
    "{% call(x, y=2) none.foo() %}{% endcall %}",
]


class Generator:
    """Random templates that are mostly well-typed, so that few stop at their first error."""

    def __init__(self, rng):
        self.r = rng
        self.locals = []

    def pick(self, *options):
        return self.r.choice(options)

    def text(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.25:
            return self.pick("s", "u", "w", "nl", "e", "'a b'", "'Xy-z'", "'é'", "'1'", "p[0].name", "ls[1]",
                             *self.locals)
        return self.pick(
            lambda: f"({self.text(d-1)} ~ {self.any(d-1)})",
            lambda: f"({self.text(d-1)} + {self.text(d-1)})",
            lambda: f"{self.text(d-1)}.{self.pick('upper', 'lower', 'strip', 'title', 'capitalize', 'lstrip', 'rstrip', 'swapcase')}()",
            lambda: f"({self.text(d-1)}|{self.pick('upper', 'lower', 'trim', 'title', 'capitalize', 'string', 'reverse', 'escape', 'tojson', 'urlencode', 'indent(2)', 'safe')})",
            lambda: f"{self.text(d-1)}[{self.bound()}:{self.bound()}]",
            lambda: f"{self.text(d-1)}[{self.bound()}:{self.bound()}:{self.pick('1', '2', '-1', '-2')}]",
            lambda: f"({self.text(d-1)}|replace({self.text(0)}, {self.text(0)}))",
            lambda: f"{self.text(d-1)}.replace({self.text(0)}, {self.text(0)}, {self.pick('1', '2', '-1')})",
            lambda: f"({self.list(d-1)}|join({self.text(0)}))",
            lambda: f"({self.any(d-1)}|tojson)",
            lambda: f"({self.any(d-1)}|string)",
            lambda: f"({self.any(d-1)}|tojson(indent={self.pick('0', '2')}))",
            lambda: f"({self.text(d-1)} * {self.pick('0', '2', '3')})",
            lambda: f"({self.text(d-1)} if {self.cond(d-1)} else {self.text(d-1)})",
            lambda: f"'<%s|%r>' % ({self.any(d-1)}, {self.text(d-1)})",
            lambda: f"'{{}}/{{:>4}}'.format({self.any(d-1)}, {self.text(d-1)})",
            lambda: f"({self.text(d-1)}.split({self.pick('', 'none, 1', repr('l'), repr(' '))})|join('_'))",
        )()

    def bound(self):
        return self.pick("", "0", "1", "2", "5", "-1", "-2", "-5", "99", "-99", "none")

    def number(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.3:
            return self.pick("i", "n", "z", "f", "g", "0", "1", "2", "3", "-1", "1.5", "10", "true", "l[0]")
        return self.pick(
            lambda: f"({self.number(d-1)} {self.pick('+', '-', '*', '/', '//', '%')} {self.number(d-1)})",
            lambda: f"({self.any(d-1)}|length)",
            lambda: f"({self.text(d-1)}|length)",
            lambda: f"({self.number(d-1)}|{self.pick('abs', 'int', 'float', 'round', 'round(1)', 'string|int')})",
            lambda: f"({self.list(d-1)}|{self.pick('length', 'sum', 'max', 'min', 'first', 'last')})",
            lambda: f"{self.text(d-1)}.{self.pick('find', 'count', 'rfind')}({self.text(0)})",
            lambda: f"(-{self.number(d-1)})",
            lambda: f"({self.number(d-1)} if {self.cond(d-1)} else {self.number(d-1)})",
        )()

    def cond(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.2:
            return self.pick("t", "no", "true", "i > 3", "'a' in s", "zz is defined", "l", "el", "s is string")
        return self.pick(
            lambda: f"({self.cond(d-1)} {self.pick('and', 'or')} {self.cond(d-1)})",
            lambda: f"(not {self.cond(d-1)})",
            lambda: f"({self.number(d-1)} {self.pick('==', '!=', '<', '>', '<=', '>=')} {self.number(d-1)})",
            lambda: f"({self.text(d-1)} {self.pick('==', '!=', '<', 'in', 'not in')} {self.text(d-1)})",
            lambda: f"({self.any(d-1)} {self.pick('==', '!=', 'in', 'not in')} {self.list(d-1)})",
            lambda: f"({self.any(d-1)} is {self.pick('', 'not ')}{self.pick('string', 'number', 'mapping', 'sequence', 'iterable', 'none', 'defined', 'boolean', 'true', 'integer', 'float')})",
            lambda: f"{self.text(d-1)}.{self.pick('isalpha', 'isdigit', 'isupper', 'islower', 'isspace', 'isalnum')}()",
            lambda: f"{self.text(d-1)}.{self.pick('startswith', 'endswith')}({self.text(0)})",
            lambda: f"({self.number(d-1)} < {self.number(d-1)} <= {self.number(d-1)})",
        )()

    def list(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.25:
            return self.pick("l", "ls", "m", "el", "[1, 2]", "['q', none]", "(1, 'x')", "range(4)", "d", "p")
        return self.pick(
            lambda: f"[{self.any(d-1)}, {self.any(d-1)}]",
            lambda: f"({self.any(d-1)}, {self.any(d-1)})",
            lambda: f"({self.list(d-1)}|list)",
            lambda: f"{self.list(d-1)}[{self.bound()}:{self.bound()}]",
            lambda: f"({self.list(d-1)}|{self.pick('sort', 'unique', 'reverse', 'batch(2)', 'select', 'reject', 'slice(2)')}|list)",
            lambda: f"({self.list(d-1)}|map({self.pick(repr('string'), repr('upper'), repr('tojson'), repr('length'), repr('default'))})|list)",
            lambda: f"({self.list(d-1)}|select({self.pick(repr('string'), repr('number'), repr('defined'), repr('odd'))})|list)",
            lambda: f"{self.text(d-1)}.{self.pick('split()', 'splitlines()', 'split(None, 1)', 'rsplit(None, 1)', 'partition(chr)')}".replace("chr", "'l'"),
            lambda: f"(p|map(attribute={self.pick(repr('name'), repr('age'), repr('tags.0'))})|list)",
            lambda: f"(p|{self.pick('selectattr', 'rejectattr')}({self.pick(repr('on'), repr('age') + ', ' + repr('eq') + ', 3', repr('tags'))})|list)",
            lambda: f"(d|{self.pick('dictsort', 'items')}|list)",
            lambda: f"(d.{self.pick('keys', 'values', 'items')}()|list)",
            lambda: f"({self.list(d-1)} + {self.list(d-1)})",
        )()

    def any(self, d):
        return self.pick(self.text, self.number, self.list, self.cond, self.thing)(d)

    def thing(self, d):
        return self.pick("no", "zz", "d", "nest", "nest.a.b", "d.zz", "f", "p[1]", "d.get('a')", "{'k': i}", "m[5]",
                         "(1 if no)", "loop.index" if self.locals else "i")

    def body(self, d):
        out = ""
        for _ in range(self.r.randint(1, 3)):
            out += self.pick("", "\n", "  ", " text ", "\n\n  ", "x\n")
            out += self.statement(d)
        return out + self.pick("", "\n", " ", "  \n")

    def tag(self, inner):
        return "{%" + self.pick("", "", "-", "+") + f" {inner} " + self.pick("", "", "-", "+") + "%}"

    def show(self, expr):
        return "{{" + self.pick("", "", "-") + f" {expr} " + self.pick("", "", "-") + "}}"

    def statement(self, d):
        if d <= 0 or self.r.random() < 0.3:
            return self.show(self.any(2))
        name = f"v{len(self.locals)}"

        def loop():
            head = f"for {name} in {self.list(2)}"
            if self.r.random() < 0.3:
                head += f" if {self.cond(1)}"
            self.locals.append(name)
            body = self.body(d - 1) + self.show(self.pick("loop.index", "loop.last", "loop.length", "loop.first",
                                                          "loop.revindex", "loop.nextitem", "loop.previtem", name))
            self.locals.pop()
            other = self.tag("else") + self.body(0) if self.r.random() < 0.3 else ""
            return self.tag(head) + body + other + self.tag("endfor")

        def assign():
            out = self.tag(f"set {name} = {self.any(2)}")
            self.locals.append(name)
            out += self.body(d - 1)
            self.locals.pop()
            return out

        def block():
            return (self.tag(f"set {name}" + self.pick("", " | upper", " | trim")) + self.body(d - 1) +
                    self.tag("endset") + self.show(name))

        def macro():
            return (self.tag(f"macro m{name}({name}, b={self.any(1)})") + self.show(name) + self.show("b") +
                    self.body(d - 1) + self.tag("endmacro") + self.show(f"m{name}({self.any(1)})"))

        return self.pick(
            loop, loop, assign, block, macro,
            lambda: self.tag(f"if {self.cond(2)}") + self.body(d - 1) + self.tag("else") + self.body(d - 1) + self.tag("endif"),
            lambda: self.tag(f"filter {self.pick('upper', 'trim', 'indent(2)', 'title')}") + self.body(d - 1) + self.tag("endfilter"),
            lambda: self.tag(f"with {name} = {self.any(1)}") + self.body(d - 1) + self.show(name) + self.tag("endwith"),
            lambda: "{#" + self.pick("", "-") + " note " + self.pick("", "-") + "#}",
        )()


def expect(env, source):
    """What jinja2 gives, or None when it refuses."""
    try:
        return env.from_string(source).render(**CONTEXT)
    except Exception:  # noqa: BLE001: whatever it raises is a refusal
        return None


def actual(command, context, sources):
    """(text or None, reason) of each template."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(context)
        f.flush()
        r = subprocess.run(command + ["--lines", "--now", str(NOW), f.name], capture_output=True,
                           input="".join(json.dumps(s) + "\n" for s in sources).encode())
    lines = [json.loads(line) for line in r.stdout.split(b"\n") if line]
    if r.returncode != 0 or len(lines) != len(sources):
        # it died: the first template without an answer did it
        print(f"exit status {r.returncode}: {r.stderr.decode(errors='replace')}\nTEMPLATE {sources[len(lines)]!r}")
        sys.exit(1)
    return [(line.get("text"), line.get("error", "")) for line in lines]


def incomparable(text):
    """Prints an address."""
    return text is not None and (" at 0x" in text or "object at" in text)


def record(env, sources, path):
    cases = [[s, expect(env, s)] for s in sources]
    lines = [json.dumps(c, ensure_ascii=False) for c in cases if not incomparable(c[1])]
    with open(path, "w") as f:
        context = json.dumps(CONTEXT, ensure_ascii=False)
        f.write('{"context": ' + context + ',\n"cases": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{len(lines)} cases")
    return 0


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--count", type=int, default=1000)
    ap.add_argument("--command", default="build/bin/baton-text render")
    ap.add_argument("--show", type=int, default=20)
    ap.add_argument("--write", metavar="FILE")
    args = ap.parse_args()
    env, rng = environment(), random.Random(args.seed)
    sources = list(STATEMENTS)
    for line in FIXED.split("\n"):
        sources += ["{{ " + expr.strip() + " }}" for expr in line.split(";;") if expr.strip()]
    if args.write:
        return record(env, sources, args.write)
    sources += [Generator(rng).body(3) for _ in range(args.count)]
    different = refused = 0
    results = actual(shlex.split(args.command), json.dumps(CONTEXT), sources)
    for source, (got, err) in zip(sources, results):
        want = expect(env, source)
        refused += want is None
        if got == want or incomparable(want):
            continue
        different += 1
        if different <= args.show:
            print(f"TEMPLATE {source!r}\n  jinja2 {want!r}\n  baton  {got!r} {err}")
    print(f"{len(sources)} templates, {refused} of them refused by jinja2 (seed {args.seed})")
    print(f"{len(sources) - different} passed, {different} failed")
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
