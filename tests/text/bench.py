#!/usr/bin/env python3
"""Tokenising, detokenising and rendering beside the Python packages that others use.

    tests/text/bench.sh [--vocab llama-bpe] [--bytes 1000000]

Everything runs on one core, one program after the other, on the same texts, and what counts is the
CPU time of each: English (documentation
of Python), code (Python's own library), and Chinese (words of the vocabulary in random order, since a
machine without a network has no Chinese text). tokenizers and tiktoken are built from the same tokens
and merges, and must give the same ids. Rendering: a conversation of 200 turns, beside jinja2.
"""
import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

DOCUMENT = 4096
PATTERNS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


def gguf(path):
    """The key-value pairs of a GGUF file."""
    data = Path(path).read_bytes()
    at = 24
    sizes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def number(fmt):
        nonlocal at
        (v,) = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return v

    def text():
        nonlocal at
        n = number("Q")
        at += n
        return data[at - n:at].decode("utf-8", "surrogateescape")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            of = number("I")
            return [value(of) for _ in range(number("Q"))]
        return number(sizes[kind])

    n = struct.unpack_from("<Q", data, 16)[0]
    out = {}
    for _ in range(n):
        key = text()
        out[key] = value(number("I"))
    return out


def spelling():
    """GPT-2's character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, n = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in out:
            out[b] = chr(n)
            n += 1
    return out


def texts(tokens, size):
    lib = Path(sysconfig.get_path("stdlib"))
    topics = (lib / "pydoc_data" / "topics.py").read_text()
    english = re.sub(r"\\n", "\n", " ".join(re.findall(r"'((?:[^'\\]|\\.)*)'", topics)))
    code = "".join(p.read_text(errors="ignore") for p in sorted(lib.glob("*.py")))
    back = {c: b for b, c in spelling().items()}
    words = []
    for t in tokens:
        try:
            w = bytes(back[c] for c in t).decode()
        except (KeyError, UnicodeDecodeError):
            continue
        if w and all("\u4e00" <= c <= "\u9fff" for c in w):
            words.append(w)
    rng = random.Random(1)
    chinese, n = [], 0
    while n < size:
        s = "".join(words[int(len(words) * rng.random() ** 3)] for _ in range(rng.randint(3, 10))) + rng.choice("，。")
        chinese.append(s)
        n += len(s.encode())
    chinese = "".join(chinese)
    out = {}
    for name, t in (("english", english), ("code", code), ("chinese", chinese)):
        b = t.encode()[:size].decode(errors="ignore")
        out[name] = b
    return out


def documents(text):
    data, out, at = text.encode(), [], 0
    while at < len(data):
        end = min(at + DOCUMENT, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        out.append(data[at:end].decode())
        at = end
    return out


def rate(run, size):
    """MB/s over at least a second, after one round."""
    run()
    start, rounds = time.process_time(), 0
    while time.process_time() - start < 1:
        run()
        rounds += 1
    return size * rounds / (time.process_time() - start) / 1e6


def others(meta, name):
    """name -> (encode all documents to a list of ids, encode without keeping)"""
    import tiktoken
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    tokens, merges = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.merges"]
    types = meta.get("tokenizer.ggml.token_type", [1] * len(tokens))
    vocab = {t: i for i, t in enumerate(tokens)}
    hf = Tokenizer(models.BPE(vocab, [tuple(m.split(" ", 1)) for m in merges], ignore_merges=name == "llama-bpe"))
    hf.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    hf.decoder = decoders.ByteLevel()
    back = {c: b for b, c in spelling().items()}
    ranks = {bytes(back[c] for c in t): i for i, t in enumerate(tokens) if types[i] == 1}
    tk = tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
    fast = getattr(hf, "encode_batch_fast", hf.encode_batch)
    out = {"tokenizers": (lambda docs: [i for e in fast(docs) for i in e.ids], lambda docs: fast(docs)),
           "tiktoken": (lambda docs: [i for d in docs for i in tk.encode_ordinary(d)],
                        lambda docs: [tk.encode_ordinary(d) for d in docs])}

    def stream(ids):
        """Tokens per second through tokenizers' own streaming decoder."""
        start = time.process_time()
        s = decoders.DecodeStream(skip_special_tokens=True)
        for i in ids:
            s.step(hf, i)
        return len(ids) / (time.process_time() - start)

    return out, stream


def bench_tokenizers(binary, vocab, cache, size):
    path = cache / "vocabs" / f"ggml-vocab-{vocab}.gguf"
    meta = gguf(path)
    rest, stream = others(meta, vocab)
    print(f"{'tokenise, MB/s on one core':32} {'baton':>8} {'tokenizers':>11} {'tiktoken':>9}   ({vocab})")
    with tempfile.TemporaryDirectory() as tmp:
        for name, text in texts(meta["tokenizer.ggml.tokens"], size).items():
            f = Path(tmp, name)
            f.write_text(text)
            line = subprocess.run([binary, "bench", str(path), str(f)], capture_output=True, text=True, check=True).stdout
            ours, n, streamed = re.search(r"encode ([\d.]+) MB/s, (\d+) tokens .*stream ([\d.]+) M", line).groups()
            docs, row = documents(text), []
            for other, (ids, run) in rest.items():
                got = ids(docs)
                if len(got) != int(n):
                    print(f"  {other} gives {len(got)} tokens, baton {n}", file=sys.stderr)
                row.append(rate(lambda: run(docs), len(text.encode())))
            print(f"  {name:30} {float(ours):8.2f} {row[0]:11.2f} {row[1]:9.2f}")
            if name == "english":
                theirs = stream(rest["tiktoken"][0](docs)[:20000])
                streaming = f"  {'streaming detokeniser':30} {float(streamed) * 1e6:8.0f} {theirs:11.0f} {'-':>9}   tokens/s"
    print(streaming)


def bench_render(binary, cache, turns=200):
    sys.path.insert(0, os.path.dirname(__file__))
    from diff_jinja import environment
    messages = [{"role": "system", "content": "You are terse."}]
    for i in range(turns // 2):
        messages += [{"role": "user", "content": f"Question {i}: what is {i} times {i}? " * 3},
                     {"role": "assistant", "content": f"It is {i * i}. " * 8}]
    context = {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    print(f"{f'render {turns} turns, microseconds':32} {'baton':>8} {'jinja2':>11}")
    for name in ("Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.3-70B-Instruct", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1"):
        path = cache / "templates" / f"{name}.jinja"
        if not path.exists():
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(context, f)
            f.flush()
            r = subprocess.run([binary, "bench", "--render", str(path), f.name], capture_output=True, text=True)
        if r.returncode:
            print(f"  {name:30} {r.stderr.strip()}")
            continue
        ours = float(re.search(r"render ([\d.]+) us", r.stdout)[1])
        template = environment().from_string(path.read_text())
        start, rounds = time.process_time(), 0
        while time.process_time() - start < 1:
            template.render(**context)
            rounds += 1
        theirs = (time.process_time() - start) / rounds * 1e6
        print(f"  {name:30.30} {ours:8.0f} {theirs:11.0f}")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--binary", default="build/bin/baton-text")
    ap.add_argument("--vocab", default="llama-bpe", choices=PATTERNS)
    ap.add_argument("--bytes", type=int, default=1000000)
    args = ap.parse_args()
    cache = Path(os.environ.get("BATON_CACHE", os.path.expanduser("~/.cache/baton")))
    bench_tokenizers(args.binary, args.vocab, cache, args.bytes)
    bench_render(args.binary, cache)


if __name__ == "__main__":
    main()
