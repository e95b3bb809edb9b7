"""Who may use the API: keys, origins of browser pages; and the ids by which a request is known."""
import hashlib
import json
import os
import socket
import subprocess
import urllib.error
import urllib.request

import openai
import pytest

from conftest import BIN, TINY, Cluster, running, wait_for

KEY, OTHER, ORIGIN = "sk-e2e-key", "sk-other", "https://chat.example"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("# two users\n" + "".join(f"user{i}:{hashlib.sha256(k.encode()).hexdigest()}\n"
                                               for i, k in enumerate((KEY, OTHER))))
    return path


@pytest.fixture(scope="module")
def locked(keys):
    os.environ["BATON_API_KEY"] = KEY  # for local.sh
    try:
        yield from running(Cluster(model=TINY / "qwen3", sets=(
            f"api_key_file={keys}", f"routerd.cors_origins={ORIGIN}, http://localhost:3000", "log_level=debug")))
    finally:
        del os.environ["BATON_API_KEY"]


def call(url, method="GET", body=None, **headers):
    """status, headers (lower case), body"""
    req = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), method=method,
                                 headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(req, timeout=60) as r:
            return r.status, {k.lower(): v for k, v in r.headers.items()}, r.read()
    except urllib.error.HTTPError as e:
        return e.code, {k.lower(): v for k, v in e.headers.items()}, e.read()


COMPLETION = {"prompt": "abc", "max_tokens": 2}


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x", "/metrics", "/debug/requests", "/debug/live", "/nowhere"])
@pytest.mark.parametrize("authorization", [None, "", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", KEY])
def test_no_key_no_answer(locked, path, authorization):
    s, h, b = call(locked.url + path, **({} if authorization is None else {"Authorization": authorization}))
    e = json.loads(b)["error"]
    assert s == 401 and h["www-authenticate"] == "Bearer" and h["connection"] == "close"
    assert e["code"] == "invalid_api_key" and e["type"] == "authentication_error" and e["message"]


def test_probes_are_open(locked):
    for name, (_, _, address) in locked.status().items():
        for path in ("/health", "/ready"):
            assert call(f"http://{address}{path}")[0] == 200, name
        for path in ("/metrics", "/debug/requests"):
            assert call(f"http://{address}{path}")[0] == 401, name
            assert call(f"http://{address}{path}", Authorization=f"Bearer {OTHER}")[0] == 200, name


def test_openai_with_a_key(locked):
    with openai.OpenAI(base_url=locked.url + "/v1", api_key=KEY, max_retries=0) as c:
        model = c.models.list().data[0].id
        r = c.completions.create(model=model, prompt="abc", max_tokens=2)
        assert r.usage.completion_tokens >= 1 and r._request_id.startswith("req-")
    with openai.OpenAI(base_url=locked.url + "/v1", api_key="wrong", max_retries=0) as c:
        with pytest.raises(openai.AuthenticationError) as e:
            c.completions.create(model=model, prompt="abc", max_tokens=2)
        assert e.value.code == "invalid_api_key" and e.value.request_id


def test_refusal_of_an_unread_body(locked):
    """The body of a refused request is never taken for the next one."""
    body = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500
    with socket.create_connection(("127.0.0.1", locked.port), timeout=20) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer no\r\nContent-Length: "
                  + str(len(body)).encode() + b"\r\n\r\n" + body)
        got = b""
        while part := s.recv(65536):
            got += part
    assert got.count(b"HTTP/1.1 ") == 1 and got.startswith(b"HTTP/1.1 401 ")


def preflight(locked, origin, path="/v1/chat/completions", **more):
    return call(locked.url + path, "OPTIONS", Origin=origin, Access_Control_Request_Method="POST", **more)


@pytest.mark.parametrize("origin,good", [(ORIGIN, True), ("http://localhost:3000", True), ("https://evil.example", False),
                                         (ORIGIN + ".evil.example", False), ("null", False),
                                         ("http://chat.example", False), ("http://localhost:3001", False)])
def test_cors(locked, origin, good):
    names = "authorization,content-type,x-stainless-lang"
    s, h, _ = preflight(locked, origin, Access_Control_Request_Headers=names)
    assert s == 204 and h["allow"] == "POST, OPTIONS" and h["vary"] == "Origin"
    assert h.get("access-control-allow-origin") == (origin if good else None)
    assert h.get("access-control-allow-headers") == (names if good else None)
    assert ("access-control-allow-methods" in h) == ("access-control-max-age" in h) == good
    assert "access-control-allow-credentials" not in h
    for key, status in ((KEY, 200), ("no", 401)):  # refusals must be readable by the page too
        s, h, _ = call(locked.url + "/v1/completions", "POST", COMPLETION, Origin=origin, Authorization=f"Bearer {key}")
        assert s == status and h.get("access-control-allow-origin") == (origin if good else None)
        assert "access-control-allow-credentials" not in h
    assert call(locked.url + "/v1/completions", "POST", COMPLETION, Origin=origin)[0] == 401


def test_options(locked):
    assert call(locked.url + "/v1/models", "OPTIONS")[1]["allow"] == "GET, HEAD, OPTIONS"
    assert call(locked.url + "/nowhere", "OPTIONS")[0] == 404
    s, h, _ = preflight(locked, ORIGIN, Access_Control_Request_Headers="a" * 2000)
    assert s == 204 and h["access-control-allow-headers"] == "Authorization, Content-Type"


def test_any_origin(tmp_path):
    """'*' on a router of its own, without workers: pages of any origin, never with credentials."""
    conf = tmp_path / "routerd.conf"
    conf.write_text(f"listen = 127.0.0.1:0\nadmin_listen =\nmodel = {TINY}/qwen3\ncors_origins = *\n")
    log = open(tmp_path / "log", "wb")
    p = subprocess.Popen([BIN / "routerd", "-c", conf], stderr=log)
    try:
        wait_for(lambda: "http://" in (tmp_path / "log").read_text(), 20)
        url = "http://" + (tmp_path / "log").read_text().split("http://")[1].split(",")[0]
        s, h, _ = call(url + "/v1/models", Origin="https://a.example")
        assert s == 200 and h["access-control-allow-origin"] == "*" and "vary" not in h
        assert "access-control-allow-origin" not in call(url + "/v1/models")[1]
    finally:
        p.terminate()
        p.wait(20)


@pytest.mark.parametrize("setting,why", [
    ("api_key_file = /nowhere", "No such file"), ("cors_origins = chat.example", "is not an origin"),
    ("cors_origins = https://chat.example/", "is not an origin"), ("cors_origins = https://Chat.example", "lower case")])
def test_bad_settings(tmp_path, setting, why):
    conf = tmp_path / "routerd.conf"
    conf.write_text(f"listen = 127.0.0.1:0\nadmin_listen =\nmodel = {TINY}/qwen3\n{setting}\n")
    p = subprocess.run([BIN / "routerd", "-c", conf], capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and why in p.stderr and setting.split(" = ")[0] in p.stderr


@pytest.mark.parametrize("sent,kept", [("my-id:1/x", True), ("a" * 128, True), ("a" * 129, False), ("a b", False),
                                       ("", False), (None, False)])
def test_request_id(locked, sent, kept):
    h = {} if sent is None else {"X_Request_Id": sent}
    for path, body in (("/v1/completions", COMPLETION), ("/v1/completions", {}), ("/nowhere", None)):
        got = call(locked.url + path, "POST" if body is not None else "GET", body, Authorization=f"Bearer {KEY}", **h)[1]
        assert (got["x-request-id"] == sent) if kept else got["x-request-id"].startswith("req-")


def test_request_is_known_by_its_id_everywhere(locked):
    """The id and traceparent of a request are in the logs of all three daemons."""
    for trace, shown in ((TRACE, True), (TRACE.upper(), False), (TRACE + "-x", False), ("ff" + TRACE[2:], False)):
        name = "shown" if shown else "hidden"
        s, h, _ = call(locked.url + "/v1/completions", "POST", {**COMPLETION, "ignore_eos": True}, Authorization=f"Bearer {KEY}",
                       X_Request_Id=f"{name}-id", traceparent=trace)
        assert s == 200 and h["x-request-id"] == f"{name}-id"
        for daemon in ("routerd", "prefilld-1", "decoded-1"):
            line = f"(request {name}-id" + (f" {trace})" if shown else ")")
            wait_for(lambda: any(l.endswith(line) for l in locked.log(daemon).splitlines()), 10)
    assert KEY not in "".join(locked.log(d) for d in ("routerd", "prefilld-1", "decoded-1"))


def test_keys_do_not_share_prefixes(locked):
    """Whether a prompt was seen before is told only to who has the same key, whatever salt others name."""
    prompt = "a prompt that is long enough for some blocks of cache, " * 4

    def cached(key, **salt):
        s, _, r = call(locked.url + "/v1/completions", "POST", {"prompt": prompt, "max_tokens": 1, **salt},
                       Content_Type="application/json", Authorization=f"Bearer {key}")
        assert s == 200, r
        return json.loads(r)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(KEY) == 0 and cached(KEY) > 0
    assert cached(OTHER) == 0
    assert cached(OTHER, cache_salt="user0\n") == 0 and cached(OTHER, cache_salt="user0") == 0
    assert cached(KEY, cache_salt="mine") == 0 and cached(KEY) > 0
