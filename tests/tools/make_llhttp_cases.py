#!/usr/bin/env python3
"""Turns the request cases of llhttp's test suite (markdown) into tests/data/llhttp/requests.json.

    tests/tools/make_llhttp_cases.py LLHTTP/test/request > tests/data/llhttp/requests.json

Only cases of strict parsing are taken. A Host line is put behind each request line of HTTP/1 when the case has none, because
Baton asks for one. Each case: name, input (one character per byte), messages that are complete, and llhttp's error code or null."""
import json
import re
import sys
from pathlib import Path


def unescape(text):
    """As llhttp's own test/md-test.ts reads its blocks."""
    text = text.removesuffix("\n")
    text = re.sub(r"\\(\r\n|\r|\n)", "", text)
    text = re.sub(r"\r\n|\r|\n", "\r\n", text)
    for name, char in (("r", "\r"), ("n", "\n"), ("t", "\t"), ("f", "\f")):
        text = text.replace("\\" + name, char)
    return re.sub(r"\\x([0-9a-fA-F]+)", lambda m: chr(int(m.group(1), 16)), text)


def with_host(text):
    if re.search(r"^host *:", text, re.I | re.M):
        return text
    return re.sub(r"^([A-Z-]+ \S+ HTTP/1\.[01]\r\n)", r"\1Host: h\r\n", text, flags=re.M)


def cases(path):
    text = path.read_text(encoding="utf-8")
    title = ""
    block = r"^##+ (?P<title>[^\n]*)$|^<!-- meta=(?P<meta>\{[^\n]*\}) -->\n```http\n(?P<input>.*?)```\n[^`]*```log\n(?P<log>.*?)```"
    for m in re.finditer(block, text, re.M | re.S):
        if m["title"]:
            title = m["title"].replace("`", "").strip()
            continue
        meta = json.loads(m["meta"])
        if meta["type"] != "request" or set(meta) - {"type", "noScan"}:
            continue
        error = re.search(r"error code=(\d+)", m["log"])
        data = with_host(unescape(m["input"])).encode("utf-8").decode("latin-1")
        yield {"name": f"{path.stem}: {title}", "input": data, "messages": m["log"].count("message complete"),
               "error": int(error.group(1)) if error else None}


def main():
    found = [c for path in sorted(Path(sys.argv[1]).glob("*.md")) for c in cases(path)]
    lines = ",\n".join(json.dumps(c, ensure_ascii=True) for c in found)
    print(f"[\n{lines}\n]")


main()
