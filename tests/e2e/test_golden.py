"""The default model against its golden outputs, through the HTTP API (tests/data/golden/README.md)."""
import json

import pytest

from conftest import ROOT

GOLDEN = json.loads((ROOT / "tests/data/golden/smollm2-135m-instruct-q4_1.json").read_text())


@pytest.mark.parametrize("form", ["text", "ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_mean_log_probability_of_a_text(solo, form, stream):
    score = GOLDEN["score"][0]
    body = {"prompt": score[form], "max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        choices = [e["choices"][0] for e in solo.stream("/v1/completions", body)[:-1]]
        choice = next(c for c in choices if c["logprobs"])
    else:
        choice = solo.post("/v1/completions", body)[1]["choices"][0]
    got = choice["logprobs"]["token_logprobs"]
    assert choice["text"] == score["text"] and len(got) == len(score["ids"]) and got[0] is None
    mean = sum(got[1:]) / len(got[1:])
    assert abs(mean / score["mean"] - 1) <= 0.01, (mean, score["mean"])


def test_best_tokens_teacher_forced(solo):
    """The reference's own ids are fed: wherever its two best are apart, ours is the same."""
    compared = same = certain = 0
    for g in GOLDEN["greedy_chat"] + GOLDEN["greedy_raw"]:
        for i, top in enumerate(g["top5"]):
            gap = top[0][1] - top[1][1]
            if gap <= 0.2:
                continue
            r = solo.post("/v1/completions", {"prompt": g["prompt_ids"] + g["output_ids"][:i], "max_tokens": 1,
                                              "temperature": 0, "return_token_ids": True})[1]
            hit = r["choices"][0]["token_ids"] == [top[0][0]]
            compared, same = compared + 1, same + hit
            assert hit or gap <= 0.5, (g["prompt_ids"][:8], i, gap)
            certain += gap > 0.5
    assert compared == 255 and certain == 223 and same >= 0.98 * compared, (compared, certain, same)


def test_chats_are_rendered_as_the_reference_does(solo):
    """A chat continues as its rendered ids do."""
    for g in GOLDEN["greedy_chat"]:
        kw = {"max_tokens": 16, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        a = solo.post("/v1/chat/completions", {"messages": g["messages"], **kw})[1]
        b = solo.post("/v1/completions", {"prompt": g["prompt_ids"], **kw})[1]
        assert a["usage"]["prompt_tokens"] == len(g["prompt_ids"])
        assert a["choices"][0]["token_ids"] == b["choices"][0]["token_ids"]
