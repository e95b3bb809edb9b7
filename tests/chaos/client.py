"""A small HTTP client for the load: one connection per request, everything that comes back is kept.

The official client hides what matters here: whether an answer was cut, ended twice, or went on after
its end."""
import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What one request got. Exactly one of: whole (an answer that ended), error (an OpenAI error object,
    as the response or as the last event), cut (the connection ended before the answer did)."""
    status: int = 0
    ids: list = field(default_factory=list)
    text: str = ""
    logprobs: list = field(default_factory=list)
    finish: list = field(default_factory=list)
    usage: dict = None
    done: int = 0       # [DONE] events, or complete bodies
    error: dict = None
    cut: str = ""
    after_end: int = 0  # events after [DONE]
    comments: int = 0
    events: int = 0
    aborted: bool = False
    seconds: float = 0.0
    gap: float = 0.0    # longest silence between two tokens

    def whole(self):
        return self.status == 200 and self.done == 1 and not self.error and not self.cut

    def answer(self):
        """What must be equal to the reference, to the last bit."""
        usage = self.usage or {}
        return (self.text, tuple(self.ids), json.dumps(self.logprobs), tuple(self.finish),
                usage.get("prompt_tokens"), usage.get("completion_tokens"))

    def kind(self):
        if self.aborted:
            return "aborted"
        if self.whole():
            return "whole"
        if self.error:
            return f"error {self.status if self.status != 200 else 'event'}"
        return "cut"

    def malformed(self):
        """What no request may ever get; empty when it is in order."""
        if self.aborted:
            return ""
        if self.error is not None:
            e = self.error
            if not isinstance(e, dict) or not e.get("message") or "type" not in e:
                return f"malformed error {e}"
            if self.done or self.finish:
                return "an error beside a regular end"
        if self.done > 1 or self.after_end or len(self.finish) > 1:
            return "ended more than once"
        if self.done == 1 and not self.error and len(self.finish) != 1:
            return "an end without finish_reason"
        return ""


def _take_logprobs(out, lp):
    if not lp:
        return
    if lp.get("content") is not None:
        out.logprobs += [(c["token"], c["logprob"], c.get("top_logprobs")) for c in lp["content"]]
    elif "token_logprobs" in lp:
        tops = lp.get("top_logprobs") or [None] * len(lp["token_logprobs"])
        out.logprobs += list(zip(lp["tokens"], lp["token_logprobs"], tops))


def _take_choice(out, c):
    part = c.get("delta") or c.get("message") or c
    out.text += part.get("content") or part.get("text") or ""
    out.ids += c.get("token_ids") or []
    _take_logprobs(out, c.get("logprobs"))
    if c.get("finish_reason"):
        out.finish.append(c["finish_reason"])


def _take_event(out, data):
    if out.done:
        out.after_end += 1
    if data == "[DONE]":
        out.done += 1
        return
    e = json.loads(data)
    if e.get("error"):
        out.error = e["error"]
        return
    out.events += 1
    out.usage = e.get("usage") or out.usage
    for c in e.get("choices", []):
        _take_choice(out, c)


def _take_body(out, raw):
    body = json.loads(raw)
    if body.get("error"):
        out.error = body["error"]
        return
    out.usage = body["usage"]
    for c in body["choices"]:
        _take_choice(out, c)
    out.done = 1


class _Reader:
    """The body of a response: chunked, or with a length."""

    def __init__(self, stream, headers):
        self.stream = stream
        self.chunked = headers.get("transfer-encoding", "") == "chunked"
        self.left = int(headers.get("content-length", 0))

    async def read(self):
        """The next piece; b"" at the end, which the peer has announced."""
        if self.chunked:
            n = int((await self.stream.readuntil(b"\r\n")).split(b";")[0], 16)
            piece = await self.stream.readexactly(n + 2)
            return piece[:-2]
        if self.left == 0:
            return b""
        piece = await self.stream.read(min(self.left, 65536))
        if not piece:
            raise asyncio.IncompleteReadError(b"", self.left)
        self.left -= len(piece)
        return piece


async def _exchange(out, reader, writer, path, body, on_event):
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n")
    writer.write(head.encode() + data)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    out.status = int(lines[0].split()[1])
    headers = dict((k.lower(), v.strip()) for k, v in (h.split(":", 1) for h in lines[1:] if h))
    parts = _Reader(reader, headers)
    pending, stream = b"", headers.get("content-type", "").startswith("text/event-stream")
    last = time.monotonic()
    while piece := await parts.read():
        now = time.monotonic()
        out.gap, last = max(out.gap, now - last), now
        pending += piece
        while stream and b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            if line.startswith(b"data: "):
                _take_event(out, line[6:].decode())
                if on_event:
                    on_event(out)
            elif line.startswith(b":"):
                out.comments += 1
    if not stream:
        _take_body(out, pending)


async def ask(port, body, on_event=None, timeout=60.0, host="127.0.0.1"):
    """Sends one request and returns its Outcome; never raises for what a server may do. on_event(out)
    is called after each event of a stream and may raise Abort; cancelling the task leaves, too."""
    out = Outcome()
    begin = time.monotonic()
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
            await _exchange(out, reader, writer, path, body, on_event)
    except (Abort, asyncio.CancelledError):
        out.aborted = True
    except TimeoutError:
        out.cut = f"no end within {timeout:.0f} s"
    except (OSError, asyncio.IncompleteReadError, EOFError) as e:
        out.cut = f"{type(e).__name__}: {e}"
    finally:
        if writer:
            writer.close()
    out.seconds = time.monotonic() - begin
    return out


class Abort(Exception):
    """Raised by on_event: the client leaves."""
