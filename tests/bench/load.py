#!/usr/bin/env python3
"""Load on any server of /v1/completions that streams and takes prompts of token ids; for versus.sh.

  load.py serve BASE_URL [--ttft 1024,4096] [--concurrency 1,4,16,32] ...
  load.py interfere BASE_URL [--streams 16] [--long-tokens 6000] ...

serve: time to the first token of one request, by length of the prompt; then so many requests at
once, again and again: tokens/s over all of them, prompts included, and time per output token.
interfere: streams decode; once all of them do, one long prompt arrives. Gaps between the chunks of
the streams before it and while it is computed, and its time to the first token.

Prompts are random ids, new ones each time, so that no prefix cache helps. Python's standard library
alone. Prints one JSON object; medians over --repeat rounds."""
import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.parse
import urllib.request


class Answer:
    def __init__(self):
        self.sent = 0.0
        self.times = []   # of chunks that carry text
        self.usage = {}

    def tokens(self):
        return self.usage.get("completion_tokens", len(self.times))


async def body_lines(reader, chunked):
    """Lines of a body, chunked or up to the end of the connection."""
    if not chunked:
        while line := await reader.readline():
            yield line
        return
    rest = b""
    while size := int(await reader.readline(), 16):
        rest += await reader.readexactly(size)
        await reader.readline()
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line


async def complete(o, prompt_tokens, max_tokens, seed, on_token=None):
    draw = random.Random(seed)
    body = json.dumps({
        "model": o.model, "prompt": [draw.randrange(1000, 40000) for _ in range(prompt_tokens)],
        "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True}}).encode()
    url = urllib.parse.urlsplit(o.base_url)
    answer = Answer()
    answer.sent = time.perf_counter()
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1 << 20)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"
                     b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                     % (url.netloc.encode(), len(body)) + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise SystemExit(f"load: {head.decode()}{(await reader.read(2000)).decode()}")
        async for line in body_lines(reader, b"transfer-encoding: chunked" in head):
            now = time.perf_counter()
            if not line.startswith(b"data:") or b"[DONE]" in line:
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise SystemExit(f"load: {event['error']}")
            answer.usage = event.get("usage") or answer.usage
            choices = event.get("choices")
            if choices and (choices[0].get("text") or not choices[0].get("finish_reason")):
                answer.times.append(now)
                if on_token:
                    on_token()
    finally:
        writer.close()
    if not answer.times:
        raise SystemExit("load: an answer without a token")
    return answer


def at(values, percent):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


def middle(values):
    return round(statistics.median(values), 2)


async def serve(o):
    seed = time.time_ns() // 1000
    result = {"ttft_ms": {}, "concurrency": {}}
    await complete(o, 64, 8, seed)
    for n in o.ttft:
        times = []
        for _ in range(o.repeat):
            seed += 1
            a = await complete(o, n, 2, seed)
            times.append((a.times[0] - a.sent) * 1e3)
        result["ttft_ms"][n] = middle(times)
    for n in o.concurrency:
        rate, per_token, first = [], [], []
        for _ in range(o.repeat):
            seed += n
            answers = await asyncio.gather(
                *[complete(o, o.prompt_tokens, o.max_tokens, seed + i) for i in range(n)])
            seconds = max(a.times[-1] for a in answers) - min(a.sent for a in answers)
            rate.append(sum(a.tokens() for a in answers) / seconds)
            per_token.append(statistics.median(
                (a.times[-1] - a.times[0]) / max(1, a.tokens() - 1) * 1e3 for a in answers))
            first.append(statistics.median((a.times[0] - a.sent) * 1e3 for a in answers))
        result["concurrency"][n] = {"out_tok_s": middle(rate), "tpot_ms": middle(per_token),
                                    "ttft_ms": middle(first)}
    return result


async def interfere_once(o, seed):
    counts = [0] * o.streams
    ready = asyncio.Event()

    def counted(i):
        def on_token():
            counts[i] += 1
            if min(counts) >= o.warm_tokens:
                ready.set()
        return on_token

    async def arrive():
        await ready.wait()
        return await complete(o, o.long_tokens, 8, seed + 1000)

    long = asyncio.create_task(arrive())
    streams = await asyncio.gather(*[complete(o, o.prompt_tokens, o.max_tokens, seed + i, counted(i))
                                     for i in range(o.streams)])
    if not ready.is_set():
        raise SystemExit("load: the streams ended before they had warmed up (--max-tokens)")
    long = await long
    begin, end = long.sent, long.times[0]
    if min(s.times[-1] for s in streams) < end:
        raise SystemExit("load: a stream ended before the long prompt's first token (--max-tokens)")
    all_run = max(s.times[0] for s in streams)
    before, during = [], []
    for s in streams:
        for x, y in zip(s.times, s.times[1:]):
            if x >= all_run and y <= begin:
                before.append((y - x) * 1e3)
            elif y > begin and x < end:
                during.append((y - x) * 1e3)
    return {"before_p50_ms": at(before, 50), "before_p99_ms": at(before, 99),
            "during_p50_ms": at(during, 50), "during_p99_ms": at(during, 99),
            "during_max_ms": max(during), "long_ttft_ms": (end - begin) * 1e3,
            "tok_s_during": len(during) / (end - begin)}


async def interfere(o):
    seed = time.time_ns() // 1000
    rounds = [await interfere_once(o, seed + 10000 * i) for i in range(o.repeat)]
    return {key: middle([r[key] for r in rounds]) for key in rounds[0]}


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["serve", "interfere"])
    p.add_argument("base_url")
    p.add_argument("--model", help="its name in the requests (the first that the server names)")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--ttft", type=numbers, default=[1024, 4096])
    p.add_argument("--concurrency", type=numbers, default=[1, 4, 16, 32])
    p.add_argument("--streams", type=int, default=16)
    p.add_argument("--long-tokens", type=int, default=6000)
    p.add_argument("--warm-tokens", type=int, default=40, help="of each stream, before the long prompt")
    p.add_argument("--prompt-tokens", type=int, help="of the other requests (128; interfere: 32)")
    p.add_argument("--max-tokens", type=int, help="that they generate (64; interfere: 600)")
    o = p.parse_args()
    if not o.model:
        with urllib.request.urlopen(o.base_url + "/v1/models") as reply:
            o.model = json.load(reply)["data"][0]["id"]
    serving = o.what == "serve"
    o.prompt_tokens = o.prompt_tokens or (128 if serving else 32)
    o.max_tokens = o.max_tokens or (64 if serving else 600)
    print(json.dumps(asyncio.run(serve(o) if serving else interfere(o))))


main()
