"""A worker's own /health and /ready: what a kubelet or an operator sees of loading, hangs and routers."""
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

from conftest import BIN, SLOW, TINY, default_model, free_port, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chaos"))

from rig import Rig  # noqa: E402


def get(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10 * SLOW) as r:
            return r.status, json.loads(r.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def test_stalled_engine_is_not_ready():
    """Work without progress: not ready within the stall limit, ready again with the next step; alive."""
    r = Rig("--threads", "1", model=TINY / "llama", sets=("stall_ms=500", "routerd.worker_wait_ms=60s"))
    try:
        r.start()
        worker = r.status()["decoded-1"][2]
        assert get(worker, "/ready?router") == (200, {"status": "ready"})
        r.fault_file.write_text("decoded-1/engine.step@1=delay:4000")
        ask = threading.Thread(target=r.post, args=("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 8}))
        ask.start()
        wait_for(lambda: get(worker, "/ready")[0] == 503, 10)
        assert "no progress" in get(worker, "/ready")[1]["reason"] and get(worker, "/health")[0] == 200
        wait_for(lambda: get(worker, "/ready")[0] == 200, 20)
        ask.join()
        r.local("stop", "routerd")
        wait_for(lambda: get(worker, "/ready?router")[0] == 503, 10)
        assert get(worker, "/ready?router")[1]["reason"] == "no router is connected"
        assert get(worker, "/ready")[0] == 200
    finally:
        r.stop()


def test_loading_is_told(tmp_path):
    """While the weights are packed /health says that the process lives, /ready how far it is, and so does the
    service manager's status; it only grows."""
    port, manager = free_port(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60 * SLOW)
    p = subprocess.Popen([BIN / "decoded", f"--model={default_model()}", f"--http=127.0.0.1:{port}"],
                         env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}, stderr=subprocess.DEVNULL)
    try:
        seen = []
        while True:
            try:
                status, body = get(f"127.0.0.1:{port}", "/ready")
            except urllib.error.URLError:  # it does not listen yet
                assert p.poll() is None
                continue
            if status == 200:
                break
            assert body["status"] == "not ready" and get(f"127.0.0.1:{port}", "/health")[0] == 200
            if m := re.fullmatch(r"loading: (\d+) percent of the weights are packed", body["reason"]):
                seen.append(int(m[1]))
            else:
                assert body["reason"].startswith("loading: ")
        assert seen == sorted(seen) and len(set(seen)) > 3, seen
        told = []
        while not any("READY=1" in t for t in told):
            told.append(manager.recv(4096).decode())
        assert any(re.search("STATUS=loading: .* packed", t) for t in told), told
    finally:
        p.terminate()
        p.wait(60)
        manager.close()
