"""HTTPS: answers of every shape through TLS, new certificates by a reload, and peers that speak no TLS."""
import hashlib
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import openai
import pytest

from conftest import BIN, SLOW, TINY, Cluster, running, wait_for

MODEL = TINY / "llama-q8_0.gguf"


def certificate(folder, name):
    """A key and a certificate for 127.0.0.1 that signs itself."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    certificate(folder, "first")
    return folder


class Secure(Cluster):
    """Cluster whose router is restarted with TLS: local.sh itself asks by plain HTTP."""

    def start(self):
        super().start()
        conf = Path(self.state, "routerd.conf")
        conf.write_text(conf.read_text() + f"tls_cert_file = {self.pem}/cert.pem\ntls_key_file = {self.pem}/key.pem\n")
        self.reload("routerd", "reload: 2 settings changed")
        return self


@pytest.fixture(scope="module")
def secure(pem):
    c = Secure("--threads", "1", model=MODEL)
    c.pem = pem
    yield from running(c)


def connect(cluster, ca=None, **kw):
    context = ssl.create_default_context(cafile=ca)
    for k, v in kw.items():
        setattr(context, k, v)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", cluster.port), timeout=30 * SLOW),
                               server_hostname="127.0.0.1")


def get(s, path, close=False):
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{'Connection: close' + chr(13) + chr(10) if close else ''}\r\n".encode())
    return s


def test_official_client(secure, pem, monkeypatch):
    """Whole answers, streams and a prompt of many records, certificate checked."""
    monkeypatch.setenv("SSL_CERT_FILE", str(pem / "cert.pem"))
    with openai.OpenAI(base_url=f"https://127.0.0.1:{secure.port}/v1", api_key="x", max_retries=0) as c:
        model = c.models.list().data[0].id
        assert c.completions.create(model=model, prompt="abc", max_tokens=3, extra_body={"ignore_eos": True}).usage.completion_tokens == 3
        n = sum(1 for e in c.completions.create(model=model, prompt="abc", max_tokens=200, stream=True,
                                                extra_body={"ignore_eos": True}) if e.choices)
        assert n >= 200
        with pytest.raises(openai.BadRequestError):  # 200 KB in, an error out
            c.completions.create(model=model, prompt="a b " * 50000, max_tokens=1)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_and_keep_alive(secure, pem, version):
    with connect(secure, pem / "cert.pem", minimum_version=version, maximum_version=version) as s:
        assert s.version() == version.name.replace("_", ".")
        for _ in range(3):
            get(s, "/health")
            assert s.recv(4096).startswith(b"HTTP/1.1 200")
        get(s, "/health", close=True)
        data = b""
        while piece := s.recv(4096):
            data += piece
        assert data.endswith(b"}") and s.unwrap() is not None  # close_notify, not a cut


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(secure, pem):
    with pytest.raises(ssl.SSLError):
        connect(secure, pem / "cert.pem", minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)


def test_plain_http_and_rubbish_are_dropped(secure, pem):
    for data in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 600, os.urandom(5000)):
        with socket.create_connection(("127.0.0.1", secure.port), timeout=30 * SLOW) as s:
            try:
                s.sendall(data)
                while piece := s.recv(4096):
                    assert b"HTTP/1.1" not in piece
            except ConnectionError:
                pass
    with connect(secure, pem / "cert.pem") as s:
        get(s, "/health")
        assert s.recv(4096).startswith(b"HTTP/1.1 200")


def test_byte_by_byte(secure, pem):
    """Records in the smallest pieces."""
    context = ssl.create_default_context(cafile=pem / "cert.pem")
    inp, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(inp, out, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", secure.port), timeout=30 * SLOW) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def step(what):
            while True:
                try:
                    return what()
                except ssl.SSLWantReadError:
                    for byte in out.read():
                        s.sendall(bytes([byte]))
                    inp.write(s.recv(4096))

        step(tls.do_handshake)
        tls.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert step(lambda: tls.read(4096)).startswith(b"HTTP/1.1 200")


def test_client_that_leaves_ends_its_request(secure, pem):
    s = connect(secure, pem / "cert.pem")
    body = b'{"prompt": "abc", "max_tokens": 1900, "ignore_eos": true, "stream": true}'
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert s.recv(100).startswith(b"HTTP/1.1 200")
    s.close()

    def idle():
        with connect(secure, pem / "cert.pem") as t:
            get(t, "/debug/requests", close=True)
            data = b""
            while piece := t.recv(65536):
                data += piece
            return b'"requests":[]' in data

    wait_for(idle, 20)


def test_certificate_is_renewed_by_a_reload(secure, pem):
    """New connections get the new one, old ones go on; a broken file is refused and nothing changes."""
    old_ca = pem / "old.pem"
    old_ca.write_bytes((pem / "cert.pem").read_bytes())
    with connect(secure, old_ca) as old:
        before = old.getpeercert(True)
        (pem / "cert.pem").write_text("no certificate")
        secure.reload("routerd", "reload refused")
        with connect(secure, old_ca) as s:
            assert s.getpeercert(True) == before
        certificate(pem, "second")
        secure.reload()
        with connect(secure, pem / "cert.pem") as s:
            assert hashlib.sha256(s.getpeercert(True)).digest() != hashlib.sha256(before).digest()
        get(old, "/health")
        assert old.recv(4096).startswith(b"HTTP/1.1 200")


def test_many_at_once(secure, pem):
    failed = []

    def work(i):
        try:
            for _ in range(5):
                with connect(secure, pem / "cert.pem") as s:
                    get(s, "/metrics", close=True)
                    data = b""
                    while piece := s.recv(65536):
                        data += piece
                    assert data.startswith(b"HTTP/1.1 200") and b"baton_requests_total" in data
        except Exception as e:
            failed.append(repr(e))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []


def test_the_admin_listener_is_encrypted_too(secure, pem):
    context = ssl.create_default_context(cafile=pem / "cert.pem")
    admin = secure.admin.replace("http:", "https:")
    with urllib.request.urlopen(admin + "/admin/workers", context=context, timeout=30 * SLOW) as r:
        assert len(json.loads(r.read())["workers"]) == 2
    with socket.create_connection(("127.0.0.1", int(admin.rsplit(":", 1)[1])), timeout=30 * SLOW) as s:
        s.sendall(b"GET /admin/workers HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"workers" not in s.recv(1000)


def test_the_handshake_has_the_headers_time(tmp_path, pem):
    """Who connects and does not shake hands is gone after header_timeout_ms; who has, may be silent for idle_timeout_ms."""
    log = tmp_path / "log"
    with open(log, "wb") as f:
        p = subprocess.Popen([BIN / "routerd", "--model", MODEL, "--listen", "127.0.0.1:0", "--admin-listen", "",
                              "--tls-cert-file", pem / "cert.pem", "--tls-key-file", pem / "key.pem",
                              "--header-timeout-ms", str(700 * SLOW), "--idle-timeout-ms", str(4000 * SLOW)], stderr=f)
    try:
        port = int(wait_for(lambda: re.search(r"on https://127.0.0.1:(\d+)", log.read_text()), 20)[1])
        context = ssl.create_default_context(cafile=pem / "cert.pem")
        shaken = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=30 * SLOW),
                                     server_hostname="127.0.0.1")
        since = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=30 * SLOW) as silent:
            assert silent.recv(100) == b""
        silent_s = time.monotonic() - since
        assert 0.6 * SLOW < silent_s < 3 * SLOW, silent_s
        time.sleep(max(0.0, since + 1.5 * SLOW - time.monotonic()))  # beyond header_timeout_ms, within idle_timeout_ms
        shaken.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert shaken.recv(1000).startswith(b"HTTP/1.1 200")
        since = time.monotonic()
        while shaken.recv(1000):
            pass
        assert time.monotonic() - since > 3 * SLOW
        shaken.close()
    finally:
        p.terminate()
        p.wait(20 * SLOW)
