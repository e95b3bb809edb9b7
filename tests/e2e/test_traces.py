"""Spans of requests at an OpenTelemetry collector (OTLP/HTTP with JSON), which here is a small server of
Python's: what it gets, and that nobody notices when it is away or hangs; and the daemons' JSON log lines."""
import http.server
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from conftest import SLOW, TINY, Cluster, free_port, running, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chaos"))

from rig import Rig  # noqa: E402

PHASES = ["queue", "prefill", "transfer", "decode"]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes POST /v1/traces. `mode`: ok, hang (reads, says nothing), busy (503), bad (400)."""

    def __init__(self, port=0):
        self.mode, self.spans, self.batches, self.asked, self.release = "ok", [], 0, 0, threading.Event()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked += 1
                if collector.mode == "hang":
                    collector.release.wait(60)
                    return
                if collector.mode == "ok":
                    assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                    collector.take(json.loads(body))
                out = b"{}"
                self.send_response({"ok": 200, "busy": 503, "bad": 400}[collector.mode])
                self.send_header("Content-Length", str(len(out)))
                self.end_headers()
                self.wfile.write(out)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def take(self, message):
        [resource] = message["resourceSpans"]
        assert attributes(resource["resource"])["service.name"] == "baton"
        [scope] = resource["scopeSpans"]
        self.batches += 1
        self.spans += scope["spans"]

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def of(self, request_id, seconds=15):
        """The spans of one request: its own, and those below."""
        def own():
            return [s for s in self.spans if attributes(s).get("baton.request_id") == request_id]
        [root] = wait_for(own, seconds)
        return root, [s for s in self.spans if s.get("parentSpanId") == root["spanId"]]


def attributes(thing):
    out = {}
    for a in thing["attributes"]:
        [(kind, value)] = a["value"].items()
        out[a["key"]] = int(value) if kind == "intValue" else value
    return out


def times(span):
    return int(span["startTimeUnixNano"]) / 1e9, int(span["endTimeUnixNano"]) / 1e9


def ask(cluster, request_id, traceparent=None, path="/v1/completions", timeout=60, **body):
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    if traceparent:
        headers["traceparent"] = traceparent
    body = {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True, **body}
    with urllib.request.urlopen(urllib.request.Request(cluster.url + path, json.dumps(body).encode(), headers),
                                timeout=timeout * SLOW) as r:
        return r.read()


@pytest.fixture(scope="module")
def collector():
    c = Collector()
    yield c
    c.close()


@pytest.fixture(scope="module")
def traced(collector):
    yield from running(Rig("--threads", "1", model=TINY / "llama", prefill=1, decode=2,
                           sets=[f"otlp_endpoint=http://127.0.0.1:{collector.port}/v1/traces", "stall_ms=5000",
                                 "log_format=json", "log_level=debug"]))


@pytest.fixture(autouse=True)
def as_it_was(collector):
    yield
    collector.mode = "ok"


def test_phases_nest_and_sum_up(collector, traced):
    """One trace of the client's: the request's span below the client's, the four phases below that, one after
    another from the first to the last moment, and as long together."""
    before = time.time()
    ask(traced, "nested", f"00-{TRACE}-{PARENT}-01")
    after = time.time()
    root, below = collector.of("nested")
    assert root["traceId"] == TRACE and root["parentSpanId"] == PARENT and root["kind"] == 2
    assert root["name"] == "POST /v1/completions" and root["status"] == {} and root["events"] == []
    a = attributes(root)
    assert a["gen_ai.usage.output_tokens"] == 24 and a["gen_ai.usage.input_tokens"] > 0
    assert a["http.response.status_code"] == 200
    assert [s["name"] for s in below] == PHASES
    assert all(s["traceId"] == TRACE and re.fullmatch("[0-9a-f]{16}", s["spanId"]) for s in below)
    assert len({s["spanId"] for s in below} | {root["spanId"], PARENT}) == 6
    start, end = times(root)
    assert before - 0.01 <= start <= end <= after + 0.01
    assert start <= times(below[0])[0] and times(below[-1])[1] <= end + 0.0015
    for first, second in zip(below, below[1:]):
        assert times(first)[1] == times(second)[0], "the next phase begins where one ends"
    whole = sum(e - s for s, e in map(times, below))
    assert end - start - 0.5 <= whole <= end - start + 0.002
    ttft = sum(e - s for s, e in map(times, below[:2])) * 1000
    assert abs(ttft - a["baton.ttft_ms"]) <= 50
    workers = {s["name"]: attributes(s).get("baton.worker") for s in below}
    assert workers["prefill"] == "prefilld-1" and workers["decode"] == workers["transfer"]
    assert workers["decode"] in ("decoded-1", "decoded-2")


def test_a_new_trace(collector, traced):
    """Without a traceparent, or with one that is none, a trace of its own; n answers have their phases each."""
    for name, parent in (("own-1", None), ("own-2", f"00-{'0' * 32}-{PARENT}-01")):
        ask(traced, name, parent, n=3)
        root, below = collector.of(name)
        assert re.fullmatch("[0-9a-f]{32}", root["traceId"]) and root["traceId"] not in (TRACE, "0" * 32)
        assert "parentSpanId" not in root
        assert sorted((attributes(s)["baton.choice"], s["name"]) for s in below) == \
            sorted((i, p) for i in range(3) for p in PHASES)
    ask(traced, "embedded", f"00-{TRACE}-{PARENT}-01", path="/v1/embeddings", input=["one", "two"])
    root, below = collector.of("embedded")
    assert root["name"] == "POST /v1/embeddings" and root["parentSpanId"] == PARENT
    assert sorted((attributes(s)["baton.choice"], s["name"]) for s in below) == \
        sorted((i, p) for i in range(2) for p in PHASES[:2])
    ask(traced, "streamed", path="/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], stream=True)
    root, below = collector.of("streamed")
    assert attributes(root)["gen_ai.operation.name"] == "chat" and [s["name"] for s in below] == PHASES


def test_a_client_that_does_not_want_it(collector, traced):
    ask(traced, "unsampled", f"00-{TRACE}-{PARENT}-00")
    ask(traced, "after")
    collector.of("after")
    assert not [s for s in collector.spans if attributes(s).get("baton.request_id") == "unsampled"]


def test_errors_have_spans(collector, traced):
    with pytest.raises(urllib.error.HTTPError):
        ask(traced, "wrong", temperature=99)
    root, below = collector.of("wrong")
    assert attributes(root)["http.response.status_code"] == 400 and below == []
    traced.arm("decoded-1/engine.step@1+1=delay:20", "decoded-2/engine.step@1+1=delay:20")
    body = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True})
    with socket.create_connection(("127.0.0.1", traced.port)) as s:  # a client that leaves
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: left\r\nContent-Type: "
                  f"application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        assert s.recv(100).startswith(b"HTTP/1.1 200")
    root, below = collector.of("left")
    traced.disarm()
    assert root["status"]["code"] == 2 and "gone" in root["status"]["message"]


def test_failover_is_an_event(collector, traced):
    """A decode worker that is killed: the request's span says when and why, and the second attempt has its
    phases in the same trace."""
    traced.arm("decoded-1/decode.token@20=kill", "decoded-2/decode.token@20=kill")
    ask(traced, "failed-over", max_tokens=32)  # what is left is less than what kills the second
    traced.disarm()
    root, below = collector.of("failed-over")
    [event, *_] = root["events"]
    e = attributes(event)
    assert event["name"] == "retry" and e["baton.attempt"] == 1 and e["baton.reason"].startswith("decoded-")
    names = [(attributes(s)["baton.attempt"], s["name"]) for s in below]
    assert names[:4] == [(0, p) for p in PHASES] and names[4:8] == [(1, p) for p in PHASES]
    lost = [s for s in below if s["status"].get("code") == 2]
    assert [(attributes(s)["baton.attempt"], s["name"]) for s in lost][0] == (0, "decode")
    at = int(event["timeUnixNano"]) / 1e9
    assert times(below[3])[1] == pytest.approx(at, abs=0.0015) == times(below[4])[0]
    assert attributes(below[3])["baton.worker"] != attributes(below[7])["baton.worker"]
    for name in ("decoded-1", "decoded-2"):
        traced.local("start", name, check=False)
    wait_for(lambda: traced.sum("baton_worker_up") == 3, 30)


def test_a_hung_collector_harms_nobody(collector, traced):
    """Answers come as fast; memory is bounded by what may wait; what waited arrives later."""
    def some(name, n=12):
        t = time.monotonic()
        for i in range(n):
            ask(traced, f"{name}-{i}")
        return time.monotonic() - t
    some("warm")
    usual = some("usual")
    collector.mode = "hang"
    asked = collector.asked
    hung = some("hung")
    wait_for(lambda: collector.asked > asked, 15)
    hung = min(hung, some("hung-2"))
    assert hung < 2 * usual + 2, (hung, usual)
    assert traced.get("/health")[0] == 200
    collector.mode = "ok"
    collector.release.set()
    collector.of("hung-0", seconds=40)
    collector.of("hung-2-11", seconds=40)
    wait_for(lambda: "takes spans again" in traced.log("routerd"), 5)
    log = traced.log("routerd")
    assert log.count("takes spans again") == 1 and log.count("spans wait") == 1, "it is said once"


def test_a_collector_that_is_busy_is_asked_again(collector, traced):
    collector.mode = "busy"
    asked = collector.asked
    ask(traced, "busy")
    wait_for(lambda: collector.asked > asked, 15)
    collector.mode = "ok"
    collector.of("busy", seconds=40)


def test_refused_spans_are_counted(collector, traced):
    def dropped():
        return traced.sum("baton_spans_total", 'result="dropped"')
    before = dropped()
    wait_for(lambda: traced.sum("baton_spans_total", 'result="sent"') == len(collector.spans), 5)
    collector.mode = "bad"
    ask(traced, "refused")
    wait_for(lambda: dropped() >= before + 5, 15)
    assert dropped() == before + 5


def test_log_lines_are_objects(traced):
    """log_format = json: every line of every daemon; those about a request have its id, up to the client's."""
    name = 'q"\\\\{}\'-%s-%n'
    ask(traced, name, f"00-{TRACE}-{PARENT}-01")
    with pytest.raises(urllib.error.HTTPError):
        ask(traced, "unknown-field", **{"temperature": 99})
    ask(traced, "unknown-field", **{"\u00e9\"\\\n\u2028": 1})
    known = {}
    for daemon in traced.status():
        lines = [json.loads(line) for line in traced.log(daemon).splitlines()]
        assert lines and all({"time", "level", "name", "file", "message"} <= set(line) for line in lines)
        about = [line for line in lines if line.get("request_id") == name]
        assert all(line["traceparent"].startswith(f"00-{TRACE}-") for line in about)
        known[daemon] = len(about)
    assert known["routerd"] and known["prefilld-1"] and known["decoded-1"] + known["decoded-2"], known
    routers = [json.loads(line) for line in traced.log("routerd").splitlines()]
    seqs = {line["seq"] for line in routers if line.get("request_id") == name and "seq" in line}
    workers = [json.loads(line) for d in ("decoded-1", "decoded-2") for line in traced.log(d).splitlines()]
    assert seqs & {line.get("seq") for line in workers}, "a sequence has one name everywhere"
    assert any("\u00e9" in line["message"] for line in routers)


def lines_about(cluster, *daemons, **fields):
    """Log lines of these daemons whose fields are these; None: there is no such field."""
    lines = [json.loads(line) for d in daemons for line in cluster.log(d).splitlines()]
    return [line for line in lines if all(line.get(k) == v for k, v in fields.items())]


def test_lines_before_the_hand_over_are_joined_by_seq(traced):
    """RESERVE does not carry the client's name: a decode worker's lines about a ticket that is reserved have `seq`
    alone, and a line of the router, and one of the prefill worker, with that `seq` have the name."""
    decode = ("decoded-1", "decoded-2")
    traced.arm(*(f"{d}/reserve@1=refuse" for d in decode))
    ask(traced, "joined")
    traced.disarm()
    by_router = {line["seq"] for line in lines_about(traced, "routerd", request_id="joined") if "seq" in line}
    by_prefill = {line["seq"] for line in lines_about(traced, "prefilld-1", request_id="joined") if "seq" in line}
    early = [line for seq in by_router for line in lines_about(traced, *decode, seq=seq, request_id=None)]
    refused, granted = ([line for line in early if word in line["message"]] for word in ("refused: full", ": granted "))
    assert refused and granted, early
    assert {line["seq"] for line in refused + granted} <= by_router & by_prefill
    assert {line["seq"] for line in refused}.isdisjoint(line["seq"] for line in granted), "attempts have names of their own"
    parked = [line for seq in by_router for line in lines_about(traced, "prefilld-1", seq=seq) if "KV parked" in line["message"]]
    assert parked and all(line["request_id"] == "joined" for line in parked)
    late = lines_about(traced, *decode, request_id="joined")
    assert any(": active, " in line["message"] for line in late), late


def test_lines_about_a_move_are_joined_by_seq(traced):
    """The attempt that a moved sequence has at its new worker is named by the line with which the router asks for the move."""
    decode = ("decoded-1", "decoded-2")

    def drain(name, method):
        with urllib.request.urlopen(urllib.request.Request(f"{traced.admin}/admin/workers/{name}/drain", method=method),
                                    timeout=10 * SLOW) as r:
            assert r.status == 200
    traced.arm(*(f"{d}/engine.step@1+1=delay:10" for d in decode))
    t = threading.Thread(target=ask, args=(traced, "moved"), kwargs={"max_tokens": 900})
    t.start()
    try:
        source = traced.when_busy(*decode)
        target = next(d for d in decode if d != source)
        drain(source, "POST")
        wait_for(lambda: traced.debug(target, "tickets") and not traced.debug(source, "tickets"), 20)
    finally:
        traced.disarm()
        t.join()
        drain(source, "DELETE")
    [asked] = [line for line in lines_about(traced, "routerd", request_id="moved") if f"MOVE to {source} for {target}" in line["message"]]
    there = lines_about(traced, target, seq=asked["seq"])
    assert [line for line in there if ": granted " in line["message"] and "request_id" not in line], there
    assert [line for line in there if ": active, " in line["message"] and line["request_id"] == "moved"], there
    wait_for(lambda: traced.sum("baton_worker_draining") == 0, 10)


def test_the_last_spans_leave_at_the_end(collector):
    """A router that stops sends what waits; one whose collector hangs stops all the same."""
    c = Cluster(model=TINY / "llama", sets=[f"otlp_endpoint=http://127.0.0.1:{collector.port}/v1/traces"]).start()
    try:
        ask(c, "last-words")
        os.kill(c.pid("routerd"), signal.SIGTERM)
        collector.of("last-words", seconds=5)
        wait_for(lambda: c.status()["routerd"][1] != "running", 10)
    finally:
        c.stop()


def test_nobody_listens(collector):
    """The endpoint is refused, or is nothing that can be: the first serves all the same, the second does not start."""
    c = Cluster(model=TINY / "llama", sets=[f"otlp_endpoint=http://127.0.0.1:{free_port()}/v1/traces"]).start()
    try:
        for i in range(5):
            ask(c, f"nobody-{i}")
        wait_for(lambda: "spans wait" in c.log("routerd"), 10)
        t = time.monotonic()
        os.kill(c.pid("routerd"), signal.SIGTERM)
        wait_for(lambda: c.status()["routerd"][1] != "running", 10)
        assert time.monotonic() - t < 5 * SLOW
    finally:
        c.stop()
    bad = Cluster(model=TINY / "llama", sets=["otlp_endpoint=https://collector.example/v1/traces"])
    try:
        p = bad.local("start", *bad.args, check=False)
        assert p.returncode != 0 and "TLS is the collector's" in p.stdout + p.stderr
    finally:
        bad.stop()
