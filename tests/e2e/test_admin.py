"""The router's second listener: who runs the cluster has keys and paths of their own."""
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conftest import BIN, SLOW, TINY, Cluster, alive, running, wait_for

PAGES = ("/metrics", "/debug/requests", "/")
OPEN = ("/health", "/ready", "/")


@pytest.fixture(scope="module")
def tiny():
    yield from running(Cluster("--threads", "1", model=TINY / "llama-q8_0.gguf"))


def ask(url, key=None, method="GET", body=None, **headers):
    """status and answer"""
    if key:
        headers["Authorization"] = f"Bearer {key}"
    req = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(req, timeout=30 * SLOW) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def line(name, key):
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}\n"


def reconfigure(cluster, text):
    """The router's file gets these lines behind what local.sh wrote, and is read again."""
    conf = Path(cluster.state, "routerd.conf")
    conf.write_text(re.sub(r"(?s)# more\n.*", "", conf.read_text()) + "# more\n" + text)
    cluster.reload("routerd", " settings changed")


def test_admin_paths_are_on_the_admin_listener_only(tiny):
    for method, path in (("GET", "/admin/workers"), ("POST", "/admin/workers/decoded-1/drain"),
                         ("DELETE", "/admin/workers/decoded-1/drain"), ("OPTIONS", "/admin/workers")):
        s, text = ask(tiny.url + path, method=method)
        assert s == 404 and "admin_listen" in json.loads(text)["error"]["message"], (method, path)
    assert len(json.loads(ask(tiny.admin + "/admin/workers")[1])["workers"]) == 2
    assert tiny.sum("baton_worker_draining") == 0


def test_the_admin_listener_has_everything(tiny):
    for path in (*PAGES, "/health", "/ready", "/v1/models"):
        assert ask(tiny.admin + path)[0] == ask(tiny.url + path)[0] == 200, path
    s, r = tiny.post("/v1/completions", {"prompt": "hi", "max_tokens": 2, "ignore_eos": True}, at=tiny.admin)
    assert s == 200 and r["usage"]["completion_tokens"] == 2


def test_api_pages(tiny):
    """Off by a reload: the API's listener is for clients alone."""
    reconfigure(tiny, "api_pages = off\n")
    try:
        for path in (*PAGES, "/debug/live"):
            s, text = ask(tiny.url + path)
            assert s == 404 and "admin_listen" in json.loads(text)["error"]["message"], path
        for path in PAGES:
            assert ask(tiny.admin + path)[0] == 200, path
        for path in ("/health", "/ready", "/v1/models"):
            assert ask(tiny.url + path)[0] == 200, path
    finally:
        reconfigure(tiny, "")
    assert ask(tiny.url + "/metrics")[0] == 200


def test_keys_of_one_listener_are_nothing_on_the_other(tiny, tmp_path):
    (tmp_path / "api").write_text(line("client", "c-key"))
    (tmp_path / "admin").write_text(line("operator", "a-key"))
    drain = "/admin/workers/decoded-1/drain"
    reconfigure(tiny, f"api_key_file = {tmp_path}/api\n")
    try:  # keys for clients alone: the admin listener lets nobody in
        for key in (None, "c-key", "a-key"):
            for path in ("/metrics", "/debug/requests", "/debug/live", "/admin/workers", "/v1/models", "/nowhere"):
                s, text = ask(tiny.admin + path, key)
                assert s == 401 and "admin_key_file" in json.loads(text)["error"]["message"], (key, path)
            assert ask(tiny.admin + drain, key, "POST")[0] == 401
        assert ask(tiny.url + "/metrics", "c-key")[0] == 200
        reconfigure(tiny, f"api_key_file = {tmp_path}/api\nadmin_key_file = {tmp_path}/admin\n")
        for base, good, bad in ((tiny.url, "c-key", "a-key"), (tiny.admin, "a-key", "c-key")):
            for path in ("/metrics", "/v1/models", "/debug/requests"):
                assert [ask(base + path, k)[0] for k in (good, bad, None)] == [200, 401, 401], (base, path)
        assert [ask(tiny.admin + "/admin/workers", k)[0] for k in ("a-key", "c-key", None)] == [200, 401, 401]
        assert [ask(tiny.admin + drain, k, "POST")[0] for k in ("c-key", None)] == [401, 401]
        assert ask(tiny.admin + drain, "a-key", "POST")[0] == 200
        assert ask(tiny.admin + drain, "a-key", "DELETE")[0] == 200
        for base in (tiny.url, tiny.admin):
            for path in OPEN:
                assert ask(base + path)[0] == 200, path
        reconfigure(tiny, f"admin_key_file = {tmp_path}/admin\n")  # and the other way round
        assert [ask(tiny.admin + "/metrics", k)[0] for k in ("a-key", None)] == [200, 401]
        assert ask(tiny.url + "/metrics")[0] == 200
    finally:
        reconfigure(tiny, "")


def test_no_browser_administrates(tiny, tmp_path):
    """A page in a browser on the router's machine can neither drain nor read."""
    for method, path in (("POST", "/admin/workers/decoded-1/drain"), ("GET", "/admin/workers")):
        assert ask(tiny.admin + path, None, method, Origin="http://evil.example")[0] == 403
    assert tiny.sum("baton_worker_draining") == 0


def test_it_can_be_left_out_and_must_not_be_taken(tmp_path):
    """No address: no listener. An address that somebody has: an error that says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        args = [BIN / "routerd", "--model", TINY / "llama-q8_0.gguf", "--listen", "127.0.0.1:0"]
        p = subprocess.run([*args, "--admin-listen", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=60 * SLOW)
        assert p.returncode == 1 and f'cannot listen on "127.0.0.1:{port}"' in p.stderr, p.stderr
    log = tmp_path / "log"
    with open(log, "wb") as f:
        p = subprocess.Popen([*args, "--admin-listen", ""], stderr=f)
    try:
        wait_for(lambda: "waiting for workers" in log.read_text(), 20)
        assert "admin on" not in log.read_text()
    finally:
        p.terminate()
        p.wait(20 * SLOW)


def test_a_bad_admin_key_file_is_refused(tmp_path):
    (tmp_path / "keys").write_text("operator:short\n")
    p = subprocess.run([BIN / "routerd", "--model", TINY / "llama-q8_0.gguf", "--admin-key-file", tmp_path / "keys",
                        "--check-config"], capture_output=True, text=True, timeout=60 * SLOW)
    assert p.returncode == 1 and re.search(r"admin_key_file = \S*keys, line 1: the hash", p.stderr), p.stderr


def test_no_origin_is_allowed(tiny):
    """cors_origins is for clients: whatever it says, no page of another origin reads what operators see."""
    reconfigure(tiny, "cors_origins = *\n")
    try:
        want = {"Origin": "https://ok.example", "Access-Control-Request-Method": "GET"}
        for base, allowed in ((tiny.url, "*"), (tiny.admin, None)):
            for method in ("OPTIONS", "GET"):
                req = urllib.request.Request(base + "/debug/requests", headers=want, method=method)
                with urllib.request.urlopen(req, timeout=30 * SLOW) as r:
                    assert r.headers["Access-Control-Allow-Origin"] == allowed, (base, method)
    finally:
        reconfigure(tiny, "")


def test_equal_names_share_no_prefix(tiny, tmp_path):
    """A client and an operator whose keys have one name: neither learns from cached_tokens what the other asked."""
    (tmp_path / "api").write_text(line("sam", "c-key"))
    (tmp_path / "admin").write_text(line("sam", "a-key"))
    reconfigure(tiny, f"api_key_file = {tmp_path}/api\nadmin_key_file = {tmp_path}/admin\n")

    def cached(base, key):
        s, text = ask(base + "/v1/completions", key, "POST", {"prompt": list(range(5, 105)), "max_tokens": 1},
                      **{"Content-Type": "application/json"})
        assert s == 200, text
        return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]

    try:
        assert cached(tiny.url, "c-key") == 0 and cached(tiny.url, "c-key") > 0
        assert cached(tiny.admin, "a-key") == 0 and cached(tiny.admin, "a-key") > 0
    finally:
        reconfigure(tiny, "")


def test_a_router_that_drains_is_seen_to():
    """After SIGTERM: both listeners stay, /ready says why not, new requests get 503 with Retry-After, and what runs
    comes to its end. A second signal ends it at once."""
    cluster = Cluster("--threads", "1", model=TINY / "llama", faults=True, sets=[f"drain_ms={60 * SLOW}s"])
    try:
        cluster.start()
        for again in (False, True):
            answers = []
            cluster.arm("decoded-1/engine.step@1+1=delay:10")  # it runs until this is over
            body = {"prompt": [5, 6, 7], "n": 24, "max_tokens": 1900, "ignore_eos": True}
            t = threading.Thread(target=lambda: answers.append(attempt(cluster, body)))
            t.start()
            cluster.when_busy("decoded-1")
            pid = cluster.pid("routerd")
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: "draining" in ask(cluster.url + "/ready")[1], 10)
            for base in (cluster.url, cluster.admin):
                assert ask(base + "/ready")[0] == 503 and ask(base + "/health")[0] == 200
                with pytest.raises(urllib.error.HTTPError) as e:
                    urllib.request.urlopen(urllib.request.Request(base + "/v1/completions", b'{"prompt": "a"}'), timeout=20)
                assert e.value.code == 503 and e.value.headers["Retry-After"] == "1"
            assert ask(cluster.admin + "/admin/workers")[0] == 200
            if again:
                os.kill(pid, signal.SIGTERM)
                wait_for(lambda: not alive(pid), 5)
            cluster.disarm()
            t.join()
            assert (answers[0] is None) if again else answers[0][1]["usage"]["completion_tokens"] == 24 * 1900
            wait_for(lambda: not alive(pid), 20)
            assert ("second signal" in cluster.log("routerd")) == again
            cluster.local("start", "routerd")
    finally:
        cluster.stop()


def attempt(cluster, body):
    try:
        return cluster.post("/v1/completions", body)
    except (OSError, http.client.HTTPException):
        return None
