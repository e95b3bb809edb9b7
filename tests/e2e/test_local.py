"""deploy/local.sh and deploy/run.sh as a newcomer uses them: every verb, wrong options, what is said."""
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time

import pytest

from conftest import LOCAL, ROOT, SLOW, TINY, Cluster, alive, free_port, running, wait_for

MODEL = TINY / "llama"


def local(*args, **kw):
    return subprocess.run([str(LOCAL), *map(str, args)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=60 * SLOW, **kw)


@pytest.mark.parametrize("args,word", [
    (["start", "--port", "abc"], "--port"), (["start", "--port", "70000"], "65535"),
    (["start", "--port", "0"], "--dir"), (["start", "--prefill", "0"], "--prefill"),
    (["start", "--decode", "100"], "--decode"), (["start", "--threads", "0"], "--threads"),
    (["start", "--set", "foo"], "key=value"), (["start", "--set", "no_such_key=1"], "no_such_key"),
    (["start", "--set", "routerd.kv_blocks=1"], "routerd lacks the setting kv_blocks"),
    (["start", "--set", "other.threads=1"], "no daemon other"), (["start", "--set", "listen=x:1"], "--port"),
    (["start", "--model", "/no/such/model"], "/no/such/model"), (["start", "--port"], "value"),
    (["start", "--wrong"], "--wrong"), (["status"], "no cluster"), (["status", "routerd"], "no name"),
    (["start", "routerd"], "no routerd"), (["restart", "decoded-1"], "no decoded-1")])
def test_wrong_use_is_one_line(tmp_path, args, word):
    needs_value = args[-1] == "--port"
    port_alone = args[1:] == ["--port", "0"]
    p = local(*args, *([] if needs_value or port_alone else ["--dir", tmp_path / "state"]))
    lines = p.stderr.splitlines()
    assert p.returncode == 1 and p.stdout == "" and len(lines) == 1 and word in lines[0], p
    assert lines[0].startswith("local.sh: ")


@pytest.mark.parametrize("args", [[], ["nonsense"]])
def test_usage(args):
    p = local(*args)
    assert p.returncode == 2 and "start [OPTIONS]" in p.stderr
    assert local("--help").returncode == 0


@pytest.mark.parametrize("content,word", [(b"", "empty"), (b"not a model", "GGUF"),
                                          (b"GGUF\x03\0\0\0" + b"\xff" * 16, "claims")])
def test_bad_model_gives_the_reason(tmp_path, content, word):
    model = tmp_path / "m.gguf"
    model.write_bytes(content)
    p = local("start", "--dir", tmp_path / "state", "--port", free_port(), "--model", model)
    assert p.returncode == 1 and str(model) in p.stderr and word in p.stderr, p.stderr
    status = local("status", "--dir", tmp_path / "state").stdout
    assert status.count(" - stopped ") == 3, status


def test_port_in_use(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        p = local("start", "--dir", tmp_path / "state", "--port", port, "--model", MODEL)
    assert p.returncode == 1 and f"port {port} is in use" in p.stderr


def test_life_of_two_clusters():
    """Side by side; one process killed, stopped and brought back; restart keeps and changes options."""
    for a in running(Cluster("--threads", "1", model=MODEL, decode=2, sets=["decoded.max_batch=4"])):
        for b in running(Cluster(model=MODEL)):
            before = a.local("status").stdout
            assert [re.fullmatch(r"(routerd|(?:prefill|decode)d-\d) \d+ ready 127\.0\.0\.1:\d+", line)[1]
                    for line in before.splitlines()] == ["routerd", "prefilld-1", "decoded-1", "decoded-2"]
            assert a.local("start", check=False).returncode == 1  # already running
            assert not {x for _, _, x in a.status().values()} & {x for _, _, x in b.status().values()}
            os.kill(a.pid("decoded-2"), signal.SIGKILL)
            wait_for(lambda: a.status()["decoded-2"][1] == "dead", 5)
            p = a.local("start", "decoded-2")
            assert p.stdout == f"decoded-2 is ready: {a.status()['decoded-2'][2]}\n"
            assert a.local("start", "decoded-2", check=False).returncode == 1
            a.local("stop", "decoded-1")
            assert a.status()["decoded-1"] == (0, "stopped", before.split()[11])
            a.local("restart", "decoded-1")
            for name in ("routerd", "prefilld-1"):
                pid = a.pid(name)
                a.local("restart", name)
                assert a.pid(name) != pid
            old, new = before.split(), a.local("status").stdout.split()
            assert new[0::4] == old[0::4] and new[2::4] == ["ready"] * 4 and new[3::4] == old[3::4]
            a.local("restart", "--decode", "1")
            assert list(a.status()) == ["routerd", "prefilld-1", "decoded-1"]
            conf = open(os.path.join(a.state, "decoded-1.conf")).read()
            assert "max_batch = 4\n" in conf and "threads = 1\n" in conf
            assert "max_batch" not in open(os.path.join(a.state, "prefilld-1.conf")).read()
            pids = [p for p, _, _ in a.status().values()]
            a.local("stop")
            assert not any(map(alive, pids))
            assert b.post("/v1/completions", {"prompt": "hi", "max_tokens": 1})[0] == 200


def test_run_prints_a_line_that_works_and_ends_by_ctrl_c(tmp_path):
    """On a terminal of its own: the curl line as printed, then Ctrl-C; no process is left."""
    port = free_port()
    env = {**os.environ, "PORT": str(port), "XDG_RUNTIME_DIR": str(tmp_path)}
    pid, tty = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(ROOT / "deploy" / "run.sh", ["run.sh", "--model", str(MODEL)], env)
    out = b""

    def read():
        nonlocal out
        try:
            if select.select([tty], [], [], 0.1)[0]:
                out += os.read(tty, 65536)
        except OSError:  # the other side is gone
            return True

    wait_for(lambda: read() or b"Stop: Ctrl-C" in out, 60, every=0)
    text = out.decode().replace("\r", "")
    state = tmp_path / f"baton-{os.getuid()}" / str(port)
    pids = [int((state / f"{n}.pid").read_text().split()[0]) for n in ("routerd", "prefilld-1", "decoded-1")]
    curl = re.search(r"^  (curl .*?'\{.*?\}')$", text, re.S | re.M)[1]
    answer = subprocess.run(["bash", "-c", curl.replace("curl ", "curl -s --noproxy '*' ", 1)],
                            capture_output=True, text=True, timeout=60 * SLOW)
    assert f":{port}/" in curl and answer.returncode == 0
    assert answer.stdout.startswith("data: {") and answer.stdout.endswith("data: [DONE]\n\n")
    os.write(tty, b"\x03")
    end = time.monotonic() + 30 * SLOW
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        read()
        assert time.monotonic() < end, "run.sh goes on after Ctrl-C"
    os.close(tty)
    assert not any(map(alive, pids))
