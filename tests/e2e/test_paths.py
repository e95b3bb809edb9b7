"""n candidate paths: one prompt in the KV cache, its paths beside each other, and what may fail on the way."""
import os
import signal
import threading

import pytest

from conftest import Cluster, chat, running, wait_for


def complete(cluster, **kw):
    s, r = cluster.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12, "seed": 7, **kw})
    assert s == 200, r
    return r


def streamed(cluster, **kw):
    """index -> text of a stream, with its finish reasons and the last usage."""
    texts, finish, usage, order = {}, {}, None, []
    for e in cluster.stream("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12, "seed": 7,
                                                "stream_options": {"include_usage": True}, **kw}):
        if e == "[DONE]":
            continue
        assert "error" not in e, e
        usage = e.get("usage") or usage
        for c in e["choices"]:
            order.append(c["index"])
            texts[c["index"]] = texts.get(c["index"], "") + c["text"]
            if c["finish_reason"]:
                assert c["index"] not in finish
                finish[c["index"]] = c["finish_reason"]
    return texts, finish, usage, order


def test_whole_and_streamed(solo):
    r = complete(solo, n=4)
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
    texts = [c["text"] for c in r["choices"]]
    assert len(set(texts)) == 4 and r["usage"]["completion_tokens"] <= 48
    assert r["usage"]["prompt_tokens"] == complete(solo, n=1)["usage"]["prompt_tokens"]
    got, finish, usage, order = streamed(solo, n=4)
    assert [got[i] for i in range(4)] == texts and set(finish) == {0, 1, 2, 3} and usage == r["usage"]
    # Beside each other, not one after another.
    assert any(a > b for a, b in zip(order, order[1:]))
    solo.settle()


def test_a_path_is_itself_whatever_n(solo):
    texts = [c["text"] for c in complete(solo, n=5)["choices"]]
    assert [c["text"] for c in complete(solo, n=2)["choices"]] == texts[:2]
    assert complete(solo)["choices"][0]["text"] == texts[0]


def test_greedy_paths_are_equal(solo):
    s, r = chat(solo, "What is the capital of Japan?", n=3)
    assert s == 200 and {c["message"]["content"] for c in r["choices"]} == {"The capital of Japan is Tokyo."}


def test_several_prompts(solo):
    r = complete(solo, prompt=["The sky is", "Water is"], n=2)
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in r["choices"][2:]] == [c["text"] for c in complete(solo, prompt="Water is", n=2)["choices"]]


def test_best_of(solo):
    every = complete(solo, n=6, logprobs=0)["choices"]
    mean = {c["text"]: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"]) for c in every}
    r = complete(solo, n=2, best_of=6)
    assert [c["text"] for c in r["choices"]] == sorted(mean, key=mean.get, reverse=True)[:2]
    assert [c["index"] for c in r["choices"]] == [0, 1]
    assert r["usage"]["completion_tokens"] == sum(len(c["logprobs"]["token_logprobs"]) for c in every)


def test_vote(solo):
    """Self-consistency: the answers of the paths, counted; each choice is still there."""
    s, r = chat(solo, "What is 2 + 3? Answer with a number.", n=7, temperature=1, seed=1, max_tokens=40, vote=True)
    assert s == 200 and len(r["choices"]) == 7
    v = r["vote"]
    assert sum(a["votes"] for a in v["answers"]) + v["abstained"] == 7
    assert v["answers"][0]["answer"] == v["answer"] and v["answers"][0]["votes"] == v["votes"]
    assert v["choice"] == v["answers"][0]["choices"][0]
    for a in v["answers"]:
        assert len(a["choices"]) == a["votes"]
        for i in a["choices"]:
            assert a["answer"].lower() in r["choices"][i]["message"]["content"].lower()
    s, r = chat(solo, "A letter.", n=4, temperature=1, seed=1, structured_outputs={"regex": "answer=[ab]"},
                vote={"regex": "answer=(.)"})
    texts = [c["message"]["content"][-1] for c in r["choices"]]
    assert r["vote"]["votes"] == texts.count(r["vote"]["answer"]) == max(texts.count("a"), texts.count("b"))


@pytest.mark.parametrize("n,length,kw", [(1, 12, {}), (128, 1, {"temperature": 0}), (64, 3, {"echo": True})])
def test_edges(solo, n, length, kw):
    r = complete(solo, n=n, max_tokens=length, ignore_eos=True, **kw)
    assert len(r["choices"]) == n and r["usage"]["completion_tokens"] == n * length
    solo.settle()


def test_one_prompt_in_the_cache(solo):
    """n=8 with 2,000 tokens of prompt: the blocks of one prompt, and a tail for each path."""
    prompt, n, length, block = list(range(3000, 5000)), 8, 50, 16
    used, stop = [0], threading.Event()
    full = solo.own("decoded-1", "baton_kv_blocks")
    before = solo.own("prefilld-1", "baton_prefill_tokens_total")

    def watch():
        while not stop.wait(0.01):
            used.append(full - solo.own("decoded-1", "baton_kv_blocks_free"))

    t = threading.Thread(target=watch)
    t.start()
    try:
        r = complete(solo, prompt=prompt, n=n, max_tokens=length, ignore_eos=True)
    finally:
        stop.set()
        t.join()
    assert r["usage"]["prompt_tokens"] == 2000 and r["usage"]["completion_tokens"] == n * length
    decode = max(used)
    one, tail = 2000 // block, (2000 % block + length) // block + 2
    assert one + n <= decode <= one + n * tail + n, (decode, one, tail)
    # Computed once: what the prefill worker did for the other paths is at most a block each.
    computed = solo.own("prefilld-1", "baton_prefill_tokens_total") - before
    assert 2000 <= computed <= 2000 + (n - 1) * block, computed
    solo.settle()


@pytest.fixture(scope="module")
def pair():
    yield from running(Cluster(prefill=2, decode=2))


@pytest.mark.parametrize("victim", ["decoded", "prefilld"])
def test_paths_survive_a_worker(pair, victim):
    kw = dict(n=4, max_tokens=90, temperature=1, ignore_eos=True, frequency_penalty=0.4)
    retries = pair.sum("baton_retries_total")
    whole = [c["text"] for c in complete(pair, **kw)["choices"]]
    out = {}
    t = threading.Thread(target=lambda: out.update(got=streamed(pair, **kw)))
    tokens = pair.sum("baton_generated_tokens_total")
    t.start()
    wait_for(lambda: pair.sum("baton_generated_tokens_total") >= tokens + 40, 30)
    if victim == "decoded":
        name = pair.kill_busy("decoded-1", "decoded-2")
    else:
        name = "prefilld-1"
        os.kill(pair.pid(name), signal.SIGKILL)
    t.join()
    texts, finish, usage, _ = out["got"]
    assert [texts[i] for i in range(4)] == whole
    assert usage["completion_tokens"] == 360 and set(finish.values()) == {"length"}
    assert victim == "prefilld" or pair.sum("baton_retries_total") > retries, "the kill hit running paths"
    pair.local("start", name)
    wait_for(lambda: len(pair.all_blocks()) == 4, 30)
    pair.settle(10)
    assert pair.sum("baton_divergence_total") == 0
