"""What a default start shows to other machines, and what is never written down."""
import hashlib
import json
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conftest import SLOW, TINY, Cluster, wait_for

LOOPBACK = ("0100007F:", "00000000000000000000000001000000:")


def listeners(pid):
    """Local addresses of the sockets on which this process listens, as /proc has them."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(fd)))
        except OSError:
            pass
    rows = [line.split() for table in ("tcp", "tcp6") for line in
            Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
    return [r[1] for r in rows if r[3] == "0A" and r[9] in inodes]


def test_default_start_listens_on_loopback_only():
    """Control, HTTP and UCX alike."""
    cluster = Cluster("--threads", "1", model=TINY / "llama-q8_0.gguf")
    try:
        cluster.start()
        cluster.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})  # the data link is open
        for name, (pid, _, _) in cluster.status().items():
            found = listeners(pid)
            assert found and all(a.startswith(LOOPBACK) for a in found), (name, found)
            if name != "routerd":
                assert len(found) >= 3, (name, found)
    finally:
        cluster.stop()


class Tap(threading.Thread):
    """Passes one TCP connection after another on and keeps what it saw."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to, self.pieces = to, []  # of both directions
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                a = self.listener.accept()[0]
                b = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            for x, y in ((a, b), (b, a)):
                threading.Thread(target=self.copy, args=(x, y), daemon=True).start()

    def copy(self, x, y):
        try:
            while piece := x.recv(65536):
                self.pieces.append(piece)
                y.sendall(piece)
        except OSError:
            pass
        for s in (x, y):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.mark.parametrize("with_key", [False, True])
def test_control_links_are_encrypted_under_the_cluster_key(tmp_path, with_key):
    """Who listens between router and workers sees names and frames only where there is no key."""
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef")
    key.chmod(0o600)
    cluster = Cluster("--threads", "1", model=TINY / "llama-q8_0.gguf", sets=[f"cluster_key_file={key}"] if with_key else [])
    taps = []
    try:
        cluster.start()
        cluster.local("stop", "routerd")
        conf = Path(cluster.state, "routerd.conf")

        def tapped(m):
            taps.append(Tap(int(m[2])))
            return f"{m[1]} = 127.0.0.1:{taps[-1].port}"

        conf.write_text(re.sub(r"(?m)^(prefill|decode) = 127.0.0.1:(\d+)$", tapped, conf.read_text()))
        assert len(taps) == 2
        cluster.local("start", "routerd")
        wait_for(lambda: cluster.get("/ready")[0] == 200, 20)
        s, r = cluster.post("/v1/completions", {"prompt": "hello", "max_tokens": 50, "ignore_eos": True})
        assert s == 200 and r["usage"]["completion_tokens"] == 50
        for t in taps:
            seen = b"".join(t.pieces)
            assert len(seen) > 500 and (b"llama-q8_0" in seen) == (not with_key)
            assert seen.startswith(b"\x16\x03") == with_key
    finally:
        for t in taps:
            t.listener.close()
        cluster.stop()


def test_secrets_and_prompts_are_not_written_down(tmp_path):
    """Not in logs, whatever their level, not in ps, not on pages."""
    cluster_key, api_key, prompt, salt = "c1uster-key-0123456789", "s3cret-api-key", "Wednesday zebra", "pepper-and-salt"
    (tmp_path / "cluster").write_text(cluster_key)
    (tmp_path / "cluster").chmod(0o600)
    (tmp_path / "api").write_text(f"somebody:{hashlib.sha256(api_key.encode()).hexdigest()}\n")
    os.environ["BATON_API_KEY"] = api_key  # for local.sh
    cluster = Cluster("--threads", "1", model=TINY / "llama-q8_0.gguf",
                      sets=[f"cluster_key_file={tmp_path}/cluster", f"api_key_file={tmp_path}/api", "log_level=trace"])
    try:
        cluster.start()
        for path, body in (("/v1/completions", {"prompt": prompt, "max_tokens": 3, "cache_salt": salt}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": 3}),
                           ("/v1/completions", {"prompt": prompt, "top_p": 7})):
            req = urllib.request.Request(cluster.url + path, json.dumps(body).encode(), {
                "Content-Type": "application/json", "Authorization": f"Bearer {api_key}"})
            try:
                urllib.request.urlopen(req, timeout=60 * SLOW).read()
            except urllib.error.HTTPError as e:
                assert e.code == 400
        pages = ""
        for _, (pid, _, address) in cluster.status().items():
            pages += Path(f"/proc/{pid}/cmdline").read_text()
            for page in ("/debug/requests", "/metrics"):
                req = urllib.request.Request(f"http://{address}{page}", headers={"Authorization": f"Bearer {api_key}"})
                pages += urllib.request.urlopen(req, timeout=10 * SLOW).read().decode()
        logs = "".join(cluster.log(n) for n in cluster.status())
        assert "TRACE" in logs
        for secret in (cluster_key, api_key, prompt, salt, prompt.split()[1]):
            assert secret not in logs and secret not in pages, secret
    finally:
        del os.environ["BATON_API_KEY"]
        cluster.stop()
