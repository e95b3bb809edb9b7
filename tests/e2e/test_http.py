"""HTTP as hostile or unlucky clients speak it (raw sockets)."""
import json
import socket
import time

import pytest

from conftest import SLOW, Cluster, running, wait_for


@pytest.fixture(scope="module")
def web():
    yield from running(Cluster(sets=["routerd.body_max=1M", "routerd.header_timeout_ms=1500",
                                     "routerd.body_timeout_ms=1500", "prefill_chunk=2048"]))


def connect(c):
    s = socket.create_connection(("127.0.0.1", c.port))
    s.settimeout(30 * SLOW)
    return s


def read_answer(f, head=False):
    """(status, headers, body) of one answer with a Content-Length or chunked body."""
    line = f.readline()
    if not line:
        return None
    status, headers = int(line.split()[1]), {}
    while (h := f.readline()) not in (b"\r\n", b""):
        k, v = h.decode().split(":", 1)
        headers[k.lower()] = v.strip()
    if 100 <= status < 200:
        return read_answer(f, head)
    body = b""
    if head or status == 204:
        pass
    elif headers.get("transfer-encoding") == "chunked":
        while (n := int(f.readline(), 16)):
            body += f.read(n)
            f.readline()
        f.readline()
    else:
        body = f.read(int(headers["content-length"]))
    return status, headers, body


def completion(**kw):
    body = json.dumps({"prompt": "Hello", "max_tokens": 1, "temperature": 0, **kw}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)) + body


def test_pipelined_answers_in_order(web):
    s = connect(web)
    s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nDELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
              b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n" + completion() +
              b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    f = s.makefile("rb")
    got = [read_answer(f, head=i == 2) for i in range(5)]
    assert [g[0] for g in got] == [200, 405, 200, 200, 200]
    assert json.loads(got[3][2])["choices"] and json.loads(got[4][2])["data"]


@pytest.mark.parametrize("head", [
    b"Content-Length: 6\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 6",
    b"Content-Length: 46\r\nContent-Length: 0", b"Content-Length: +5", b"Content-Length: -1",
    b"Content-Length: 5, 6", b"Content-Length: 0x10", b"Content-Length: 18446744073709551616",
    b"Transfer-Encoding: xchunked"])
def test_smuggling_is_refused(web, head):
    s = connect(web)
    before = web.sum("baton_generated_tokens_total")
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head +
              b"\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    data = b""
    try:
        while chunk := s.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    assert data.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")) and data.count(b"HTTP/1.1 ") == 1
    assert web.sum("baton_generated_tokens_total") == before


@pytest.mark.parametrize("request_head", [
    b"GET /health HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n", b"GE T /health HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n"])
def test_bad_heads(web, request_head):
    s = connect(web)
    s.sendall(request_head)
    status, headers, body = read_answer(s.makefile("rb"))
    assert status in (400, 505) and headers["connection"] == "close" and json.loads(body)["error"]


def test_early_error_does_not_leak_the_body(web):
    s = connect(web)
    inner = b'{"prompt": "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n' + b"x" * 2_000_000
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner))
    f = s.makefile("rb")
    status, headers, _ = read_answer(f)
    assert status == 413 and headers["connection"] == "close"
    try:
        s.sendall(inner)
        assert f.read() == b""
    except OSError:
        pass


def test_chunked_body(web):
    s = connect(web)
    body = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for i in range(0, len(body), 7):
        part = body[i:i + 7]
        s.sendall(b"%x\r\n%s\r\n" % (len(part), part))
    s.sendall(b"0\r\n\r\n")
    assert read_answer(s.makefile("rb"))[0] == 200


def test_chunked_body_over_the_limit(web):
    s = connect(web)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(40):
            s.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    except OSError:
        pass
    assert read_answer(s.makefile("rb"))[0] == 413


def test_expect_continue(web):
    request = completion().replace(b"Host: x", b"Host: x\r\nExpect: 100-continue")
    head, body = request.split(b"\r\n\r\n", 1)
    s = connect(web)
    s.sendall(head + b"\r\n\r\n")
    f = s.makefile("rb")
    assert f.readline() == b"HTTP/1.1 100 Continue\r\n" and f.readline() == b"\r\n"
    s.sendall(body)
    assert read_answer(f)[0] == 200
    s = connect(web)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
              b"Content-Length: 9000000\r\n\r\n")
    assert s.makefile("rb").readline().startswith((b"HTTP/1.1 413", b"HTTP/1.1 417"))


def test_large_body_within_limit(web):
    text = json.dumps({"prompt": "word " * 60000, "max_tokens": 1})
    s, r = web.post("/v1/completions", text.encode())
    assert s == 400 and r["error"]["code"] == "context_length_exceeded"


def test_header_limits(web):
    s = connect(web)
    s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n")
    assert read_answer(s.makefile("rb"))[0] == 431


def test_slow_header_times_out(web):
    s = connect(web)
    s.sendall(b"GET /health HTTP/1.1\r\nHo")
    t = time.monotonic()
    data = s.recv(65536)
    assert data == b"" or data.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - t < 6 * SLOW
    assert web.get("/health")[0] == 200


LONG = dict(max_tokens=2000, ignore_eos=True)


def gone(web, before):
    web.settle(2.0)
    assert web.sum("baton_aborted_requests_total") == before + 1


def test_client_leaves_a_stream(web):
    before = web.sum("baton_aborted_requests_total")
    s = connect(web)
    s.sendall(completion(stream=True, **LONG))
    f = s.makefile("rb")
    events = 0
    while events < 2:
        events += f.readline().startswith(b"data: ")
    f.close()
    s.close()
    gone(web, before)


def test_client_leaves_without_streaming(web):
    before = web.sum("baton_aborted_requests_total")
    s = connect(web)
    s.sendall(completion(**LONG))
    wait_for(lambda: web.sum("baton_requests_running"), 5)
    s.close()
    gone(web, before)


def test_client_leaves_during_prefill(web):
    before = web.sum("baton_aborted_requests_total")
    s = connect(web)
    s.sendall(completion(**{**LONG, "prompt": [1000 + i % 7000 for i in range(6000)]}))
    wait_for(lambda: web.sum("baton_requests_running"), 5)
    s.close()
    gone(web, before)


def test_half_close_is_no_disconnect(web):
    s = connect(web)
    s.sendall(completion(max_tokens=64, ignore_eos=True))
    s.shutdown(socket.SHUT_WR)
    status, _, body = read_answer(s.makefile("rb"))
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 64
