"""The three daemons with the CUDA backend on the emulation of tests/cuda_emu: `make test-cuda`.

Models are the tiny ones; a step takes a tenth of a second. CUDA_BIN is where the programs are that
were linked with the emulation."""
import json
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import TINY, Cluster, running, wait_for

CUDA_BIN = os.environ.get("CUDA_BIN", "")
pytestmark = pytest.mark.skipif(not CUDA_BIN, reason="make test-cuda runs these")
EOS = 2
SMALL = ("backend=cuda", "context_length=512", "max_batch=4", "prefill_chunk=64", "kv_blocks=200")


@pytest.fixture(autouse=True)
def emulation(monkeypatch):
    monkeypatch.setenv("BATON_BIN", CUDA_BIN)


def complete(cluster, prompt, n, **kw):
    status, r = cluster.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0,
                                                 "ignore_eos": True, "return_token_ids": True, **kw})
    assert status == 200, r
    return r["choices"][0]["token_ids"]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_greedy_as_transformers(name):
    for c in running(Cluster(model=TINY / name, sets=SMALL)):
        greedy_as_transformers(c, name)
        log = c.log("decoded-1")
        assert "emulation/sm90/fast" in log and "passes through page-locked memory" in log


@pytest.mark.parametrize("programs", ["prefilld decoded", "decoded"])
def test_ucx_reaches_the_device(monkeypatch, programs):
    """KV goes from device to device; or what page-locked memory sent lands there."""
    monkeypatch.setenv("FAKE_GPU_UCX", programs)
    for c in running(Cluster(model=TINY / "llama", sets=SMALL)):
        greedy_as_transformers(c, "llama")
        assert "UCX reaches it there" in c.log("decoded-1")
        assert ("UCX reaches it there" in c.log("prefilld-1")) == ("prefilld" in programs)
        assert c.sum("baton_kv_bytes_received_total") > 0


def greedy_as_transformers(c, name):
    """Equal wherever the reference's best two logits are more than 0.05 apart; where they are not,
    another token may come, and the rest of that answer says nothing any more."""
    expect = json.loads((TINY / f"{name}.expect.json").read_text())
    sure = steps = 0
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda g: complete(c, g["prompt"], 24), expect["greedy"]))
    for g, got in zip(expect["greedy"], answers):
        for i, (want, gap) in enumerate(zip(g["output"], g["gaps"][:24])):
            if want == EOS:  # banned by ignore_eos
                break
            steps += 1
            sure += gap > 0.05
            if got[i] != want:
                assert gap <= 0.05, (len(g["prompt"]), i, got, g["output"])
                break
    c.settle()
    assert steps >= 48 and 2 * sure >= steps, f"{sure} of {steps} compared steps are sure"


REQUESTS = [dict(prompt=[(7 * i + k * k) % 280 + 3 for k in range(3 + 11 * i)], n=10 + 5 * i,
                 **({} if i % 2 else {"temperature": 0.9, "top_p": 0.9, "seed": 40 + i}))
            for i in range(5)]
REQUESTS[1].update(frequency_penalty=0.7, logit_bias={"9": 4, "12": -100})
REQUESTS[2].update(repetition_penalty=1.3, presence_penalty=1, min_tokens=12, bad_words=["a"])


def answers(cluster, at_once):
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda r: complete(cluster, **r), REQUESTS))


def long_answers(cluster):
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda i: complete(cluster, [5, 6, 7 + i], 120, temperature=1.0, seed=i), range(4)))


def test_graphs_batches_and_failover():
    """Strict numerics: alone, many at once over four workers, with graphs off, and with a decode
    worker killed in the middle: one answer."""
    strict = (*SMALL, "numerics=strict")
    for c in running(Cluster(model=TINY / "llama", prefill=2, decode=2, sets=strict)):
        one = answers(c, 1)
        assert [len(a) for a in one] == [r["n"] for r in REQUESTS]
        assert answers(c, 5) == one
        want = long_answers(c)
        before = c.sum("baton_retries_total")
        got = {}
        t = threading.Thread(target=lambda: got.update(ids=long_answers(c)))
        t.start()
        c.kill_busy("decoded-1", "decoded-2")
        t.join()
        assert got["ids"] == want
        assert c.sum("baton_retries_total") > before, "the kill hit running answers"
    for c in running(Cluster(model=TINY / "llama", sets=(*strict, "graphs=off"))):
        assert answers(c, 5) == one


@pytest.mark.parametrize("ucx", ["", "decoded"])
def test_moves(monkeypatch, ucx):
    """A decode worker is drained while steps are launched ahead: its sequences go on elsewhere, with the same tokens."""
    monkeypatch.setenv("FAKE_GPU_UCX", ucx)
    for c in running(Cluster(model=TINY / "llama", decode=2, sets=(*SMALL, "numerics=strict"))):
        want = long_answers(c)
        got = {}
        t = threading.Thread(target=lambda: got.update(ids=long_answers(c)))
        t.start()
        name = c.when_busy("decoded-1", "decoded-2")
        c.post(f"/admin/workers/{name}/drain", {}, at=c.admin)
        t.join()
        assert got["ids"] == want
        assert c.sum("baton_moves_total") > 0 and c.sum("baton_retries_total") == 0
        c.settle()


def test_forced_tokens(tmp_path):
    """The end of thinking is forced by a mask, which is known only when the token before it is: the
    forward pass is launched ahead, sampling follows. Together and alone it comes at the same place."""
    template = tmp_path / "thinking.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' }}")
    close = 300  # "</think>" of tests/data/tiny/llama

    def think(c, i, budget):
        status, r = c.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Who runs" + "?" * i}], "max_tokens": 24, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "thinking_token_budget": budget})
        assert status == 200, r
        return r["choices"][0]["token_ids"]

    for c in running(Cluster(model=TINY / "llama", sets=(*SMALL, f"routerd.chat_template={template}"))):
        free = [think(c, i, -1) for i in range(3)]
        alone = [think(c, i, 5 + 3 * i) for i in range(3)]
        for i, (f, a) in enumerate(zip(free, alone)):
            n = 5 + 3 * i
            if close not in f[:n]:
                assert a[:n] == f[:n] and a[n] == close and len(a) == 24, (i, f, a)
        assert any(close not in f[:5 + 3 * i] for i, f in enumerate(free))
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda i: think(c, i, 5 + 3 * i), range(3))) == alone


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["kind", "sure", "word"],
          "properties": {"kind": {"enum": ["red", "green", "blue"]}, "sure": {"type": "boolean"},
                         "word": {"type": "string", "maxLength": 6}}}


def ask(cluster, i, constrained=True):
    body = {"messages": [{"role": "user", "content": "Which one" + "?" * i}], "max_tokens": 120, "temperature": 1,
            "seed": 7 + i, "return_token_ids": True}
    if constrained:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    else:
        body |= {"max_tokens": 40, "ignore_eos": True}
    status, r = cluster.post("/v1/chat/completions", body)
    assert status == 200, r
    c = r["choices"][0]
    if constrained and c["finish_reason"] == "stop":
        v = json.loads(c["message"]["content"])
        assert sorted(v) == ["kind", "sure", "word"] and v["kind"] in ("red", "green", "blue") and len(v["word"]) <= 6
        assert isinstance(v["sure"], bool)
    return c["token_ids"], c["finish_reason"]


def work_of(cluster, name):
    """Steps that the worker did, by its metrics, and graphs that it launched, by its last words."""
    cluster.settle()
    steps = cluster.own(name, "baton_steps_total")
    os.kill(cluster.pid(name), signal.SIGTERM)
    words = wait_for(lambda: re.search(r"fake gpu: (\d+) graphs launched, (\d+) kernels", cluster.log(name)), 30)
    return steps, int(words[1])


def test_structured_output(monkeypatch):
    """A grammar's mask is known only when the token before it is: the forward pass is launched ahead,
    sampling follows as a second graph. Alone, together, beside a free row, and with graphs off: one
    answer. Launches: two a step with such rows, else one."""
    monkeypatch.setenv("FAKE_GPU_REPORT", "1")
    strict = (*SMALL, "numerics=strict")
    for c in running(Cluster(model=TINY / "llama", sets=strict)):
        alone = [ask(c, i) for i in range(3)]
        assert sum(reason == "stop" for _, reason in alone) >= 2, alone
        free = ask(c, 5, constrained=False)
        steps, launches = work_of(c, "decoded-1")
        drawn, tokens = sum(len(ids) - 1 for ids, _ in alone), len(free[0]) - 1
        # A step that was launched ahead of an end has nothing to sample: one launch.
        assert tokens == 39 and drawn + tokens <= steps <= drawn + tokens + 4
        assert launches == steps + drawn
    for graphs in ("on", "off"):
        for c in running(Cluster(model=TINY / "llama", sets=(*strict, f"graphs={graphs}"))):
            with ThreadPoolExecutor(4) as pool:
                beside = pool.submit(ask, c, 5, False)
                assert list(pool.map(lambda i: ask(c, i), range(3))) == alone
                assert beside.result() == free


def test_a_start_that_cannot_fit(monkeypatch):
    """B70: one line with what is needed, what is free, and the setting; with less to hold, it works."""
    monkeypatch.setenv("FAKE_GPU_MEMORY", str(130 << 20))
    big = Cluster(model=TINY / "llama", sets=(*SMALL[:-1], "kv_memory=100M"))
    p = big.local("start", *big.args, check=False)
    log = big.log("decoded-1")
    big.stop()
    assert p.returncode != 0
    errors = [line for line in log.splitlines() if " ERROR " in line]
    assert len(errors) == 1, log
    for part in ("need", "free", "kv_memory", "device_memory_percent"):
        assert part in errors[0], errors[0]
    for c in running(Cluster(model=TINY / "llama", sets=(*SMALL[:-1], "kv_memory=1M"))):
        assert len(complete(c, [3] * 200, 5)) == 5


def test_no_embeddings():
    """The device keeps its hidden states: a refusal that says so, and nothing is left behind."""
    for c in running(Cluster(model=TINY / "llama", sets=SMALL)):
        s, r = c.post("/v1/embeddings", {"input": [5, 6, 7]})
        assert s == 400 and "embeddings are not computed on this backend (emulation" in r["error"]["message"], r
        assert len(complete(c, [5, 6, 7], 3)) == 3
        c.settle(10)
