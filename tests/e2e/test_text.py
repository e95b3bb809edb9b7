"""From token ids to what clients see, with a model that emits any bytes: characters in pieces, bytes that
are no characters, control tokens, stop strings anywhere. Both modes must show the same."""
import codecs
import random

import pytest

from conftest import TINY, Cluster, running


@pytest.fixture(scope="module")
def babble():
    yield from running(Cluster(model=TINY / "llama", sets=["routerd.reasoning_format=none"]))


def whole(c, **body):
    s, r = c.post("/v1/chat/completions", body)
    assert s == 200, r
    choice = r["choices"][0]
    return choice["message"]["content"], choice["logprobs"], choice["finish_reason"], r["usage"]


def streamed(c, **body):
    text, items, finish, usage = "", [], [], None
    events = c.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert events.pop() == "[DONE]"
    for e in events:
        if not e["choices"]:
            usage = e["usage"]
            continue
        choice = e["choices"][0]
        assert not finish, "nothing comes after the finish"
        text += choice["delta"].get("content", "")
        items += (choice["logprobs"] or {}).get("content", [])
        finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(finish) == 1
    return text, {"content": items, "refusal": None}, finish[0], usage


def request(seed, **kw):
    return dict(messages=[{"role": "user", "content": "say anything"}], temperature=1.5, seed=seed,
                max_tokens=60, ignore_eos=True, logprobs=True, top_logprobs=2, **kw)


def test_any_bytes(babble):
    broken = 0
    for seed in range(25):
        a, b = whole(babble, **request(seed)), streamed(babble, **request(seed))
        a[3].pop("prompt_tokens_details"), b[3].pop("prompt_tokens_details")
        assert a == b
        raw = b"".join(bytes(i["bytes"]) for i in a[1]["content"])
        # what max_tokens leaves of a character is left out
        assert codecs.getincrementaldecoder("utf-8")("replace").decode(raw) == a[0] and a[2] == "length"
        assert len(a[1]["content"]) == a[3]["completion_tokens"] == 60
        assert "<|im_" not in a[0]
        broken += "\ufffd" in a[0]
    assert broken > 5, "the model was meant to emit bytes that are no characters"


def test_stop_strings_anywhere(babble):
    """The one that is complete first ends the answer where it begins; nothing of it shown, nothing before it lost."""
    rnd = random.Random(3)
    cut = 0
    for seed in range(25):
        text = whole(babble, **request(seed))[0]
        stops = []
        for _ in range(rnd.randint(1, 4)):
            i = rnd.randrange(len(text))
            stops.append(text[i:i + rnd.randint(1, 6)] if rnd.random() < 0.7 else f"never{i}")
        at = min(((text.find(s) + len(s), text.find(s)) for s in stops if s in text), default=(0, -1))[1]
        for show in (whole, streamed):
            got, logprobs, finish, usage = show(babble, **request(seed, stop=stops))
            assert got == (text if at < 0 else text[:at]), (text, stops)
            assert finish == ("length" if at < 0 else "stop")
            assert usage["completion_tokens"] >= len(logprobs["content"])
        cut += at >= 0
    assert 5 < cut


def test_tail_that_might_have_become_a_stop_string_comes(babble):
    text = whole(babble, **request(1))[0]
    for n in range(1, 8):
        stop = text[-n:] + "never"
        assert whole(babble, **request(1, stop=stop))[0] == streamed(babble, **request(1, stop=stop))[0] == text


def test_cut_inside_a_character(babble):
    """max_tokens at every length: the texts are prefixes of one another but for U+FFFD at the end."""
    text = whole(babble, **request(4))[0]
    for n in range(1, 40, 3):
        body = {**request(4), "max_tokens": n}
        part, _, finish, usage = whole(babble, **body)
        assert part == streamed(babble, **body)[0] and finish == "length" and usage["completion_tokens"] == n
        assert text.startswith(part.rstrip("\ufffd")), (text, part)
