#!/usr/bin/env python3
"""The grammar engine against other people's code:

  walks   random answers by the masks, for many random schemas, are valid by the `jsonschema` package
  masks   every mask along such answers against the `llguidance` package, same schemas and vocabulary

  tests/text/diff_schema.py walks MODEL [SCHEMAS [FROM]]
  tests/text/diff_schema.py masks MODEL [SCHEMAS [FROM]]

MODEL is a GGUF file, also a vocabulary alone; BATON_TEXT names the program (build/bin/baton-text)."""
import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import random_schema

ROOT = Path(__file__).resolve().parents[2]


LIMIT_US = 100  # of the thread's CPU time


class Tool:
    def __init__(self, model):
        program = os.environ.get("BATON_TEXT", ROOT / "build" / "bin" / "baton-text")
        self.p = subprocess.Popen([program, "grammar", model], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **q):
        self.p.stdin.write((json.dumps(q) + "\n").encode())
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())


def percentile(times, p):
    return sorted(times)[min(len(times) - 1, int(len(times) * p))]


def walks(tool, seeds):
    import jsonschema
    count = collections.Counter()
    fill, compile_us = [], []
    for seed in seeds:
        s = random_schema.make(seed)
        r = tool.ask(kind="schema", source=json.dumps(s), walks=5, seed=seed, tokens=80)
        compile_us.append(r["compile_us"])
        if r["status"]:
            count["refused: " + r["error"].split(": ", 1)[-1]] += 1
            continue
        fill += r["fill_us"]
        v = jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        for text in r["walks"]:
            if text is None:
                count["not finished" if not r["error"] else "ERROR " + r["error"]] += 1
                continue
            try:
                v.validate(json.loads(text))
                count["valid"] += 1
            except (ValueError, jsonschema.ValidationError) as e:
                count["INVALID"] += 1
                print(f"seed {seed}: {text}\n  {json.dumps(s)}\n  {str(e)[:300]}")
    print(dict(count))
    print(f"compile: p50 {percentile(compile_us, .5):.0f} p95 {percentile(compile_us, .95):.0f} "
          f"max {max(compile_us):.0f} us; masks: {len(fill)}, p50 {percentile(fill, .5):.1f} "
          f"p95 {percentile(fill, .95):.1f} p99 {percentile(fill, .99):.1f} max {max(fill):.0f} us")
    slow = percentile(fill, .95) > LIMIT_US
    if slow:
        print(f"a mask takes more than {LIMIT_US} us at the 95th percentile")
    return slow or count["INVALID"] or not count["valid"] or any(k.startswith("ERROR") for k in count)


# ---- llguidance ----

class Vocabulary:
    """What llguidance wants to know."""
    def __init__(self, answer):
        self.tokens = [bytes.fromhex(t) for t in answer["tokens"]]
        self.eos_token_id = answer["stops"][0]
        self.other_stops = sum(1 << i for i in answer["stops"][1:])
        self.bos_token_id = None
        self.special_token_ids = [i for i, t in enumerate(self.tokens) if not t]
        self.tokens = [t or b"\xff<%d>" % i for i, t in enumerate(self.tokens)]

    def __call__(self, s):
        s = s.encode() if isinstance(s, str) else s
        return [self.tokens.index(bytes([b])) for b in s]


def compare(tool, ll_tok, vocab, s, seed, count, shown):
    """One schema: our random answers, token by token, through both."""
    import llguidance
    r = tool.ask(kind="schema", source=json.dumps(s), compact=True, walks=2, seed=seed, tokens=60)
    theirs = {**s, "x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}}
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(theirs))
        m = llguidance.LLMatcher(ll_tok, grammar, log_level=0)
        bad = m.get_error()
    except ValueError as e:
        bad = str(e)
    if r["status"] or bad:
        count["refused by us" if not bad else "refused by both" if r["status"] else "refused by them"] += 1
        return
    count["schemas"] += 1
    for ids in r["ids"]:
        m = llguidance.LLMatcher(ll_tok, grammar, log_level=0)
        q = tool.ask(kind="schema", source=json.dumps(s), compact=True, ids=[ids], bits=True)
        for i, mask in enumerate(q["masks"][0]):
            ours = int.from_bytes(b"".join(int(mask["bits"][k:k + 8], 16).to_bytes(4, "little")
                                           for k in range(0, len(mask["bits"]), 8)), "little")
            other = int.from_bytes(bytes(m.compute_bitmask()), "little") & ((1 << len(vocab.tokens)) - 1)
            ours &= ~vocab.other_stops  # they know one
            count["masks"] += 1
            if ours != other:
                text = b"".join(vocab.tokens[k] for k in ids[:i])
                why = explain(vocab, ours, other, s, text)
                count[why] += 1
                if shown[why] < 3 or why.startswith("DIFFERENT"):
                    shown[why] += 1
                    more = [vocab.tokens[k] for k in bits(ours & ~other)][:6]
                    less = [vocab.tokens[k] for k in bits(other & ~ours)][:6]
                    print(f"seed {seed} behind {text[-60:]}: {why}: only we {more}, only they {less}")
            if i < len(ids) and not m.consume_token(ids[i]):
                count["they refuse our token"] += 1
                break


def bits(x):
    while x:
        low = x & -x
        yield low.bit_length() - 1
        x ^= low


def forced(tokens):
    """Whether all are beginnings of one text."""
    longest = max(tokens, key=len, default=b"")
    return all(longest.startswith(t) for t in tokens)


def explain(vocab, ours, other, s, text):
    """The rule that makes the two differ here, or DIFFERENT. Where both may be right the rule says who
    does what; where one cannot be, it is they."""
    more = [vocab.tokens[k] for k in bits(ours & ~other)]
    less = [vocab.tokens[k] for k in bits(other & ~ours)]
    if not less and other.bit_count() == 1 and forced([vocab.tokens[k] for k in bits(ours)]):
        return "forced text: they allow its usual token, we any that spells it"
    source = json.dumps(s)
    more = [t for t in more if b"\x7f" not in t]
    if not more and not less:
        return "DEL in a string: JSON allows it, they do not"
    if not more and re.search('"(email|hostname)"', source) and all(b"[" in t or len(t) > 30 or t[:1] == b"."
                                                                    for t in less):
        return "host names: they allow addresses in brackets, labels of more than 63 characters, and more labels"
    if not more and re.search('"(email|hostname)"', source) and all(b"--" in t for t in less):
        return "host names: they allow hyphens in third and fourth place, which are reserved"
    if not more and re.search('"(time|date-time)"', source) and less == [b"6"]:
        return "time: they allow second 60, we do not"
    if not more and re.search('"(date|date-time)"', source) and re.search(rb'"0{0,3}$', text) and all(t[:1] == b"0" for t in less):
        return "date: they allow the year 0, we do not"
    if not less and '"multipleOf"' in source and text[-1:].isdigit():
        return "multiple of a fraction: they write as many decimals as that has, we any number"
    if not less and re.search(rb"-(0(\.0*)?)?$", text) and all(t[:1] in b"0,]}" for t in more):
        return "number: they have no -0, JSON has"
    if not less and re.search('"minimum": 0[,}]', source) and all(t[:1] == b"-" for t in more):
        return "number: they have no -0, JSON has"
    if not more and text[-1:].isdigit() and all(re.fullmatch(rb"[0-9.]+", t) for t in less):
        return "number: they allow any number of digits, ours fit a double"
    if not more and number_before(text) in exclusive(source) and all(t[:1] in b",]}" for t in less):
        return "exclusive bound: they allow the bound itself"
    if not less and re.search(rb"\.[0-9]+$", text) and re.search('"(exclusiveM|m)(in|ax)imum"', source) and \
            all(t[:1] in b"0,]}" for t in more):  # that what we write is within them, `walks` shows
        return "fraction within bounds: they have no zeros at its end, nor some short ones, JSON has"
    if not less and '"ipv6"' in source and all(t[:1] == b"." for t in more):
        return "IPv6: they have no IPv4 address behind a short one, RFC 4291 has"
    if text.endswith(b"\\") and all(t[:1] in b"u/" for t in more + less):
        return "escapes in names and constants: each has some spellings that the other leaves out"
    if not more and EXCLUDED in source and (text.endswith(b"\\") or all(b"\\" in t for t in less)):
        return "pattern: they allow the escape of a character that it excludes"
    return f"DIFFERENT +{bool(more)} -{bool(less)}"


def number_before(text):
    """What a text ends with, or None."""
    m = re.search(rb"-?[0-9]+(\.[0-9]+)?$", text)
    return float(m[0]) if m else None


def exclusive(source):
    """The exclusive bounds of a schema."""
    return [float(b) for b in re.findall(r'"exclusiveM(?:in|ax)imum": (-?[0-9.]+)', source)]


EXCLUDED = json.dumps("^[^\"\\\\]{0,12}$")  # of random_schema.PATTERNS


def masks(tool, seeds):
    import llguidance
    vocab = Vocabulary(tool.ask(vocab=True))
    ll_tok = llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocab))
    count, shown = collections.Counter(), collections.Counter()
    for seed in seeds:
        compare(tool, ll_tok, vocab, random_schema.make(seed), seed, count, shown)
    for why, n in count.most_common():
        print(f"{n:8} {why}")
    return not count["masks"] or any(k.startswith("DIFFERENT") for k in count)


if __name__ == "__main__":
    n, begin = (int(x) for x in (sys.argv[3:] + ["500", "1"][len(sys.argv) - 3:])[:2])
    sys.exit({"walks": walks, "masks": masks}[sys.argv[1]](Tool(sys.argv[2]), range(begin, begin + n)))
