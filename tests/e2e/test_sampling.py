"""Sampling parameters, end to end: what each does to the text, and that it holds across the hand-over."""
import concurrent.futures
import math
import re

import pytest

from conftest import TINY, Cluster, chat, running, wait_for

ONE_TWO = "one two one two one two"


def complete(cluster, prompt=ONE_TWO, **kw):
    body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, **kw}
    s, r = cluster.post("/v1/completions", body)
    assert s == 200, r
    return r


def text(cluster, **kw):
    return complete(cluster, **kw)["choices"][0]["text"]


def ids(cluster, **kw):
    return complete(cluster, return_token_ids=True, **kw)["choices"][0]["token_ids"]


def test_logit_bias(solo):
    assert ids(solo, logit_bias={"100": 100}) == [100] * 16
    plain = ids(solo)
    without = ids(solo, logit_bias={str(plain[0]): -100})
    assert without[0] != plain[0] and plain[0] not in without


def test_penalties(solo):
    plain = ids(solo, max_tokens=40, ignore_eos=True)
    for kw in ({"frequency_penalty": 2}, {"presence_penalty": 2, "frequency_penalty": 1},
               {"repetition_penalty": 2}):
        other = ids(solo, max_tokens=40, ignore_eos=True, **kw)
        assert len(set(other)) > len(set(plain)), kw
    # Against the rule itself, from the raw log probabilities that come with each token.
    r = complete(solo, max_tokens=12, ignore_eos=True, frequency_penalty=1.5, presence_penalty=0.5,
                 logprobs=5, return_token_ids=True, return_tokens_as_token_ids=True)["choices"][0]
    counts = {}
    for token, top in zip(r["token_ids"], r["logprobs"]["top_logprobs"]):
        at = {int(k.split(":")[1]): v - 1.5 * counts.get(int(k.split(":")[1]), 0)
              - 0.5 * (int(k.split(":")[1]) in counts) for k, v in top.items()}
        if token in at:
            assert at[token] == max(at.values())
        counts[token] = counts.get(token, 0) + 1


def test_repetition_penalty_of_one_and_zero_penalties_change_nothing(solo):
    assert ids(solo) == ids(solo, repetition_penalty=1, presence_penalty=0, frequency_penalty=0,
                            logit_bias={}, bad_words=[], stop_token_ids=[], min_tokens=0)


def test_min_tokens(solo):
    body = {"messages": [{"role": "user", "content": "What is the capital of Japan?"}], "temperature": 0}
    short = solo.post("/v1/chat/completions", {**body, "max_tokens": 40})[1]["usage"]["completion_tokens"]
    s, r = solo.post("/v1/chat/completions", {**body, "max_tokens": 40, "min_tokens": short + 10})
    assert s == 200 and short + 10 <= r["usage"]["completion_tokens"] <= 40


def test_bad_words(solo):
    assert "two" in text(solo)
    assert "two" not in text(solo, bad_words=["two"])
    words = text(solo, prompt="The capital of France is", max_tokens=4)
    assert "Paris" in words
    assert "Paris" not in text(solo, prompt="The capital of France is", bad_words=["Paris"])


def test_allowed_token_ids(solo):
    allowed = [100, 200, 300]
    assert set(ids(solo, temperature=1, seed=1, allowed_token_ids=allowed)) <= set(allowed)


def test_stop_token_ids(solo):
    plain = ids(solo)
    stop = plain[4]
    r = complete(solo, stop_token_ids=[stop])
    c = r["choices"][0]
    at = plain.index(stop)
    assert c["finish_reason"] == "stop" and c["stop_reason"] == stop
    assert r["usage"]["completion_tokens"] == at + 1
    assert text(solo).startswith(c["text"]) and c["text"] == text(solo, max_tokens=at) if at else c["text"] == ""
    shown = complete(solo, stop_token_ids=[stop], include_stop_str_in_output=True)["choices"][0]
    assert shown["text"] == text(solo, max_tokens=at + 1)
    # Tokens that end an answer by themselves are ignored, these are not.
    assert complete(solo, stop_token_ids=[stop], ignore_eos=True)["choices"][0]["stop_reason"] == stop


def test_stop_reason_of_a_string(solo):
    c = complete(solo, stop=["zzz", "two"])["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == "two"
    assert complete(solo, max_tokens=2)["choices"][0]["stop_reason"] is None


def test_prompt_logprobs(solo):
    r = complete(solo, prompt="The capital of France is Paris", max_tokens=1, prompt_logprobs=2,
                 return_token_ids=True)["choices"][0]
    scores, prompt = r["prompt_logprobs"], r["prompt_token_ids"]
    assert scores[0] is None and len(scores) == len(prompt)
    for one, token in zip(scores[1:], prompt[1:]):
        assert str(token) in one and 2 <= len(one) <= 3
        for entry in one.values():
            assert entry["logprob"] <= 0 and entry["rank"] >= 1 and isinstance(entry["decoded_token"], str)
        best = min(one.values(), key=lambda e: e["rank"])
        assert best["rank"] == 1 and best["logprob"] == max(e["logprob"] for e in one.values())
    echoed = complete(solo, prompt="The capital of France is Paris", max_tokens=1, echo=True, logprobs=0)
    assert [s[str(t)]["logprob"] for s, t in zip(scores[1:], prompt[1:])] == \
        echoed["choices"][0]["logprobs"]["token_logprobs"][1:len(prompt)]
    s, r = chat(solo, "hi", max_tokens=1, prompt_logprobs=0)
    assert s == 200 and len(r["prompt_logprobs"]) == r["usage"]["prompt_tokens"]


def test_truncate_prompt_tokens(solo):
    r = complete(solo, prompt=list(range(1000, 1100)), truncate_prompt_tokens=7, max_tokens=4)
    assert r["usage"]["prompt_tokens"] == 7
    assert r["choices"][0]["text"] == text(solo, prompt=list(range(1093, 1100)), max_tokens=4)


def test_continue_final_message(solo):
    talk = [{"role": "user", "content": "What is the capital of Japan?"}]
    whole = chat(solo, "What is the capital of Japan?")[1]["choices"][0]["message"]["content"]
    s, r = solo.post("/v1/chat/completions", {
        "messages": talk + [{"role": "assistant", "content": "The capital of"}], "temperature": 0,
        "continue_final_message": True})
    assert s == 200 and "The capital of" + r["choices"][0]["message"]["content"] == whole
    n = [solo.post("/v1/chat/completions", {"messages": talk, "max_tokens": 1, "add_generation_prompt": g})[1]
         ["usage"]["prompt_tokens"] for g in (True, False)]
    assert n[0] > n[1]


def test_special_tokens_shown(solo):
    def one(**kw):
        return text(solo, prompt="a", max_tokens=2, allowed_token_ids=[3], **kw)
    assert one() == "" and "<" in one(skip_special_tokens=False)


def test_usage_in_every_event(solo):
    ev = [e for e in solo.stream("/v1/completions", {
        "prompt": "a", "max_tokens": 5, "ignore_eos": True,
        "stream_options": {"continuous_usage_stats": True}}) if e != "[DONE]"]
    counts = [e["usage"]["completion_tokens"] for e in ev]
    assert counts == sorted(counts) and counts[-1] == 5


def test_seed_under_load(solo):
    """The same seed gives the same text whatever runs beside it, with all that changes logits in use."""
    kw = dict(prompt="Tell me a story", max_tokens=24, temperature=1, seed=11, frequency_penalty=0.7,
              presence_penalty=0.3, repetition_penalty=1.1, bad_words=["the"], min_tokens=20,
              logit_bias={"28": -2, "30": 1.5}, top_p=0.95)
    alone = complete(solo, **kw)["choices"][0]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        noise = [pool.submit(complete, solo, prompt=f"Noise {i}", temperature=1, max_tokens=32) for i in range(6)]
        twins = [pool.submit(complete, solo, **kw) for _ in range(3)]
        assert [t.result()["choices"][0] for t in twins] == [alone] * 3
        for n in noise:
            n.result()
    solo.settle()


def test_logprobs_are_numbers(solo):
    s, r = chat(solo, "hi", max_tokens=3, logprobs=True, top_logprobs=20, logit_bias={"100": 100})
    for item in r["choices"][0]["logprobs"]["content"]:
        assert math.isfinite(item["logprob"]) and len(item["top_logprobs"]) == 20
        assert all(math.isfinite(t["logprob"]) and isinstance(t["bytes"], list) for t in item["top_logprobs"])


def test_unknown_fields(solo):
    before = solo.sum("baton_unknown_fields_total")
    assert chat(solo, "hi", max_tokens=1, temprature=0.1)[0] == 200
    assert solo.sum("baton_unknown_fields_total") == before + 1


def test_urgent_goes_first(tmp_path, monkeypatch):
    """A decode worker with room for one prompt: who waits is admitted by priority, not by arrival."""
    slowly = tmp_path / "faults"
    slowly.write_text("decoded-1/decode.token@1+1=delay:30\n")
    monkeypatch.setenv("BATON_FAULT", f"@{slowly}")

    def ask(i, priority, length):
        prompt = [5 + i] + [7] * 1199  # 75 blocks; nothing of it is shared
        complete(c, prompt=prompt, priority=priority, max_tokens=length, ignore_eos=True)

    for c in running(Cluster(model=TINY / "qwen3", sets=("decoded.kv_blocks=130", "decoded.log_level=debug"))):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            jobs = [pool.submit(ask, 0, 0, 700)]
            c.when_busy("decoded-1")
            for i, priority in enumerate([9, 0, -9, 0, 9], 1):
                jobs.append(pool.submit(ask, i, priority, 4))
                wait_for(lambda: sorted(c.tickets("decoded-1")) == ["active"] + ["waiting"] * i, 60)
            slowly.write_text("")
            for j in jobs:
                j.result()
        order = re.findall(r"#(\d+)\.0\.0: active", c.log("decoded-1"))
    assert order == ["1", "4", "3", "5", "2", "6"]  # requests are counted from 1


@pytest.mark.parametrize("kw,param", [({"stop_token_ids": [-1]}, "stop_token_ids"),
                                      ({"logit_bias": {"x": 1}}, "logit_bias"),
                                      ({"repetition_penalty": 0}, "repetition_penalty"),
                                      ({"min_tokens": 9, "max_tokens": 8}, "min_tokens")])
def test_refused(solo, kw, param):
    s, r = solo.post("/v1/completions", {"prompt": "a", **kw})
    assert s == 400 and r["error"]["param"] == param
