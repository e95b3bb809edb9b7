"""Limits of API keys: requests and tokens in a minute, requests at a time, priority; with the official client."""
import hashlib
import json
import os
import signal
import threading
import urllib.error
import urllib.request

import openai
import pytest

from conftest import SLOW, TINY, Cluster, running, wait_for

LIMITS = {"free": "", "slow": "tenant=lab requests_per_minute=2", "talker": "tenant=lab tokens_per_minute=600",
          "pair": "concurrency=2", "urgent": "priority=high", "later": "priority=low", "quick": "requests_per_minute=60"}
PROMPT = {"prompt": "abc", "max_tokens": 2, "extra_body": {"ignore_eos": True}}


def write(path, limits):
    path.write_text("".join(f"{n}:{hashlib.sha256(f'sk-{n}'.encode()).hexdigest()} {words}\n" for n, words in limits.items()))


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    write(path, LIMITS)
    return path


@pytest.fixture(scope="module")
def limited(keys):
    os.environ["BATON_API_KEY"] = "sk-free"  # for local.sh
    try:
        yield from running(Cluster("--threads", "1", model=TINY / "llama", faults=True, sets=(
            f"routerd.api_key_file={keys}", "prefilld.prefill_chunk=64", "stall_ms=60s")))  # a test stops a worker
    finally:
        del os.environ["BATON_API_KEY"]


def client(cluster, name, **kw):
    return openai.OpenAI(base_url=cluster.url + "/v1", api_key=f"sk-{name}", **{"max_retries": 0, **kw})


def raw(cluster, name, path, body):
    """status, headers in lower case, answer"""
    req = urllib.request.Request(cluster.url + path, json.dumps(body).encode(),
                                 {"Authorization": f"Bearer sk-{name}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(req, timeout=60 * SLOW) as r:
            return r.status, {k.lower(): v for k, v in r.headers.items()}, json.loads(r.read())
    except urllib.error.HTTPError as e:
        return e.code, {k.lower(): v for k, v in e.headers.items()}, json.loads(e.read())


def metric(cluster, name, **labels):
    req = urllib.request.Request(cluster.url + "/metrics", headers={"Authorization": "Bearer sk-free"})
    page = urllib.request.urlopen(req, timeout=20 * SLOW).read().decode()
    want = [f'{k}="{v}"' for k, v in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
               if line.startswith(name + "{") and all(w in line for w in want))


def test_requests_per_minute(limited):
    refused = metric(limited, "baton_tenant_refused_total", tenant="lab", limit="requests")
    body = {"prompt": "abc", "max_tokens": 1}
    for left in ("1", "0"):
        s, h, _ = raw(limited, "slow", "/v1/completions", body)
        assert s == 200 and h["x-ratelimit-limit-requests"] == "2" and h["x-ratelimit-remaining-requests"] == left
        assert h["x-ratelimit-reset-requests"][-1] == "s" and "x-ratelimit-limit-tokens" not in h
    for path, more in (("/v1/completions", body), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                       ("/v1/embeddings", {"input": "a"}), ("/v1/responses", {"input": "a"}), ("/tokenize", {"prompt": "a"})):
        s, h, r = raw(limited, "slow", path, more)
        assert s == 429 and r["error"]["code"] == "rate_limit_exceeded" and "2 requests per minute" in r["error"]["message"]
        assert 1 <= int(h["retry-after"]) <= 30 and int(h["retry-after-ms"]) <= 30000, h
    with client(limited, "slow") as c, pytest.raises(openai.RateLimitError) as e:
        c.completions.create(model="llama", **PROMPT)
    assert e.value.code == "rate_limit_exceeded" and e.value.type == "rate_limit_error"
    assert metric(limited, "baton_tenant_refused_total", tenant="lab", limit="requests") == refused + 6
    assert raw(limited, "free", "/v1/completions", body)[0] == 200  # others are not held up


def test_the_client_waits_as_it_is_told(limited):
    """60 a minute refill once a second; the client's own retries get everything through."""
    with client(limited, "quick", max_retries=5) as c:
        for _ in range(62):
            assert c.completions.create(model="llama", prompt="a", max_tokens=1).choices


def test_tokens_per_minute(limited):
    with client(limited, "talker") as c:
        r = c.completions.with_raw_response.create(model="llama", prompt=[5] * 40, max_tokens=60,
                                                   extra_body={"ignore_eos": True})
        assert r.headers["x-ratelimit-limit-tokens"] == "600" and int(r.headers["x-ratelimit-remaining-tokens"]) == 560
        assert r.parse().usage.total_tokens == 100
        with pytest.raises(openai.RateLimitError) as e:  # what a minute never has
            c.completions.create(model="llama", prompt=[5] * 601, max_tokens=1)
        assert "601" not in e.value.message and "600 tokens per minute" in e.value.message
        assert e.value.response.headers["x-should-retry"] == "false" and "retry-after" not in e.value.response.headers
        # an answer that runs is not cut: it owes, and the next request waits
        n = sum(1 for e in c.completions.create(model="llama", prompt=[5] * 4, max_tokens=700, stream=True,
                                                extra_body={"ignore_eos": True}) if e.choices)
        assert n >= 700
        with pytest.raises(openai.RateLimitError) as e:
            c.completions.create(model="llama", **PROMPT)
        assert 1 <= int(e.value.response.headers["retry-after"]) <= 60
        assert e.value.response.headers["x-ratelimit-remaining-tokens"] == "0"
        with pytest.raises(openai.RateLimitError):
            c.embeddings.create(model="llama", input="abc")
    assert metric(limited, "baton_tenant_tokens_total", tenant="lab", kind="answer") >= 760
    assert metric(limited, "baton_tenant_refused_total", tenant="lab", limit="tokens") == 3


def test_requests_at_a_time(limited):
    """The third is refused; a client that leaves, and an answer that ends, make room."""
    limited.arm("decoded-1/engine.step@1+1=delay:10")  # 19 s for what is asked first
    body = {"model": "llama", "prompt": [7] * 8, "max_tokens": 1900, "stream": True, "extra_body": {"ignore_eos": True}}
    with client(limited, "pair") as c:
        one, two = c.completions.create(**body), c.completions.create(**body)
        wait_for(lambda: metric(limited, "baton_tenant_requests_open", tenant="pair") == 2, 10)
        with pytest.raises(openai.RateLimitError) as e:
            c.completions.create(model="llama", **PROMPT)
        assert "2 requests at a time" in e.value.message
        one.close()
        wait_for(lambda: metric(limited, "baton_tenant_requests_open", tenant="pair") == 1, 10)
        assert c.completions.create(model="llama", prompt="a", max_tokens=1).choices
        two.close()
    limited.disarm()
    wait_for(lambda: metric(limited, "baton_tenant_requests_open") == 0, 10)


def test_priority_class(limited):
    """Who has the urgent key is computed before those who came first, whatever requests say of themselves."""
    order, lock = [], threading.Lock()
    limited.arm("prefilld-1/prefill.chunk@1+1=delay:2")  # so that ends are apart by more than clients need to hear of them

    def ask(name, i, priority):
        with client(limited, name, timeout=120 * SLOW) as c:
            c.completions.create(model="llama", prompt=[9 + i] * 1800, max_tokens=1, extra_body={"priority": priority})
        with lock:
            order.append(name)

    def there():
        req = urllib.request.Request(limited.url + "/debug/requests", headers={"Authorization": "Bearer sk-free"})
        return len(json.loads(urllib.request.urlopen(req, timeout=20 * SLOW).read())["requests"])

    for name, rank in (("urgent", 0), ("later", 4)):
        order.clear()
        os.kill(limited.pid("prefilld-1"), signal.SIGSTOP)  # all are there before any is worked on
        threads = []
        try:
            for i, (n, priority) in enumerate([("free", 0)] * 4 + [(name, {"urgent": 1000000, "later": -1000000}[name])]):
                if name == "later":  # it comes first
                    n, priority = [(name, priority), *[("free", 0)] * 4][i]
                threads.append(threading.Thread(target=ask, args=(n, i, priority)))
                threads[-1].start()
                wait_for(lambda: there() == len(threads), 20)
        finally:
            os.kill(limited.pid("prefilld-1"), signal.SIGCONT)
        for t in threads:
            t.join()
        assert order.index(name) in ((0,) if rank == 0 else (3, 4)), order
    limited.disarm()


def test_limits_change_by_a_reload(limited, keys):
    body = {"prompt": "abc", "max_tokens": 1}
    wait_for(lambda: raw(limited, "slow", "/v1/completions", body)[0] == 429, 10)

    def reload(limits, line):
        write(keys, limits)
        limited.reload("routerd", line)

    reload({**LIMITS, "slow": "tenant=lab requests_per_minute=6000"}, "reload: 0 settings changed")
    assert raw(limited, "slow", "/v1/completions", body)[0] == 200
    reload({**LIMITS, "slow": "requests_per_minute=many"}, "line 2: a limit is a number")
    assert raw(limited, "slow", "/v1/completions", body)[0] == 200
    reload(LIMITS, "reload: 0 settings changed")
