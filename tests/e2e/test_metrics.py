"""The pages at /metrics: valid for Prometheus, on every daemon, idle and at work."""
import math
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from conftest import ROOT, TINY, Cluster, running, wait_for


@pytest.fixture(scope="module")
def busy():
    yield from running(Cluster(model=TINY / "llama", prefill=2, decode=2, faults=True))


def heard(c, metric):
    """Whether the router has what its workers say of themselves now."""
    return math.isclose(c.sum(metric), sum(c.own(name, metric) for name in c.http if name != "routerd"))


def pages(c):
    return {name: urllib.request.urlopen(f"http://{address}/metrics", timeout=20).read()
            for name, (_, _, address) in c.status().items()}


def promtool_is_content(c):
    for name, page in pages(c).items():
        p = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
        assert p.returncode == 0 and not p.stdout and not p.stderr, (name, p.stdout, p.stderr)


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool (deploy/setup.sh --tests installs it)")
def test_promtool(busy):
    promtool_is_content(busy)
    done = []

    def client(i):
        body = {"prompt": f"number {i}", "max_tokens": 1500, "ignore_eos": True}
        done.append(len(busy.stream("/v1/completions", body)))

    busy.arm(*(f"decoded-{i}/engine.step@1+1=delay:10" for i in (1, 2)))  # they run until this is over
    threads = [threading.Thread(target=client, args=(i,)) for i in range(24)]
    for t in threads:
        t.start()
    wait_for(lambda: busy.sum("baton_requests_running") > 4, 20)
    promtool_is_content(busy)
    busy.post("/v1/completions", b"{")
    busy.disarm()
    for t in threads:
        t.join()
    assert done == [1502] * 24
    busy.settle()
    promtool_is_content(busy)


def test_the_routers_page_has_the_workers(busy):
    page = pages(busy)
    for name in ("prefilld-1", "prefilld-2", "decoded-1", "decoded-2"):
        families = {line.split("{")[0] for line in page[name].decode().splitlines() if f'worker="{name}"' in line}
        assert families
        wait_for(lambda: families <= {n for n, labels in busy.metrics() if f'worker="{name}"' in labels}, 10)
    lines = busy.get("/metrics")[1].splitlines()
    assert len({line for line in lines if line.startswith("# TYPE")}) == \
        sum(line.startswith("# TYPE") for line in lines), "a family is described once"


def test_names_are_documented(busy):
    """docs/OPERATIONS.md lists the metrics that are exported, and no others."""
    assert busy.post("/v1/completions", {"prompt": "hi", "max_tokens": 4})[0] == 200  # some appear with the first
    types = {}
    for page in pages(busy).values():
        types.update(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", page.decode()))
    text = (ROOT / "docs/OPERATIONS.md").read_text()
    documented = dict(re.findall(r"(?m)^\| `(baton_[a-z_]+)` \| (\w+) \|", text))
    assert documented == types


def test_vllm_names(busy):
    """Off by default; the switch takes effect with a reload, and the load is under vLLM's names then."""
    busy.settle()
    wait_for(lambda: heard(busy, "baton_kv_blocks_free"), 10)
    assert "vllm:" not in busy.get("/metrics")[1]
    conf = Path(busy.state, "routerd.conf")
    text = conf.read_text()
    conf.write_text(text + "vllm_metrics = on\n")
    busy.reload()
    try:
        m = {n: (dict(x.split("=") for x in l), v) for (n, l), v in busy.metrics().items() if n.startswith("vllm:")}
        assert set(m) == {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                          "vllm:cache_config_info"}
        assert all(labels["model_name"] for labels, _ in m.values())
        assert m["vllm:num_requests_running"][1] == 0 and m["vllm:kv_cache_usage_perc"][1] == 0
        assert m["vllm:cache_config_info"][0]["block_size"] == '"16"'
    finally:
        conf.write_text(text)
        busy.reload()
    assert "vllm:" not in busy.get("/metrics")[1]


def test_counts(busy):
    """Codes, tokens and times are counted once for each request."""
    def counts():
        m = busy.metrics()
        return [m[n, frozenset(l)] for n, l in (
            ("baton_ttft_seconds_count", []), ("baton_itl_seconds_count", []),
            ("baton_generated_tokens_total", []), ("baton_requests_total", ['code="400"']))]

    busy.post("/v1/completions", b"{")
    before = counts()
    body = {"prompt": "hi", "max_tokens": 5, "ignore_eos": True}
    assert busy.post("/v1/completions", body)[0] == 200 and len(busy.stream("/v1/completions", body)) == 7
    assert busy.post("/v1/completions", {**body, "top_p": 7})[0] == 400
    assert [b - a for a, b in zip(before, counts())] == [2, 8, 10, 1]


def test_rows_and_handovers(busy):
    """Every row is counted once, padded or not; a prompt's transfer takes some time, and no longer than its
    request."""
    names = ("baton_rows_total", "baton_padded_rows_total", "baton_handovers_total", "baton_kv_transfer_seconds_total",
             "baton_kv_exposed_seconds_total", "baton_kv_bytes_sent_total")

    def counts():
        return {n: busy.sum(n) for n in names}

    def prompts():
        return busy.sum("baton_prefill_tokens_total")

    wait_for(lambda: all(heard(busy, n) for n in (*names, "baton_prefill_tokens_total")), 10)
    before, tokens, t = counts(), prompts(), time.monotonic()
    for k in range(3):
        body = {"prompt": [7 + (k * 31 + i * 7) % 200 for i in range(61)], "max_tokens": 6, "ignore_eos": True}
        assert busy.post("/v1/completions", {**body, "cache_salt": f"rows-{k}"})[0] == 200
    took = time.monotonic() - t
    wait_for(lambda: counts()["baton_handovers_total"] - before["baton_handovers_total"] >= 3, 10)
    wait_for(lambda: all(heard(busy, n) for n in (*names, "baton_prefill_tokens_total")), 10)
    grown = {n: v - before[n] for n, v in counts().items()}
    assert prompts() - tokens == 3 * 61 and grown["baton_rows_total"] >= 3 * (61 + 5)
    assert grown["baton_padded_rows_total"] >= 3 * (64 - 61) and grown["baton_handovers_total"] == 3
    assert grown["baton_kv_bytes_sent_total"] > 0
    exposed, transfer = grown["baton_kv_exposed_seconds_total"], grown["baton_kv_transfer_seconds_total"]
    assert 0 < transfer <= took and 0 < exposed <= took
