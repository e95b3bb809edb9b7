"""/tokenize and /detokenize, against the ids that generation itself uses."""
import concurrent.futures
import json
import socket

import pytest

from conftest import TINY, Cluster, running

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Häagen <|im_end|> 🙂?"}]


@pytest.fixture(scope="module")
def tiny():
    yield from running(Cluster(model=TINY / "qwen3"))


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_text(solo, path):
    s, r = solo.post(path, {"prompt": "The capital of France", "return_token_strs": True})
    assert s == 200 and r["count"] == len(r["tokens"]) == len(r["token_strs"]) and r["max_model_len"] == 8192
    assert "".join(r["token_strs"]) == "The capital of France"
    c = solo.post("/v1/completions", {"prompt": "The capital of France", "max_tokens": 1})[1]
    assert c["usage"]["prompt_tokens"] == r["count"]
    assert solo.post(path, {"content": "The capital of France"})[1] == {**r, "token_strs": None}


def test_bos(tiny):
    """The tiny models begin with <|endoftext|>, id 0; `content` is text as it is."""
    ids = lambda **body: tiny.post("/tokenize", body)[1]["tokens"]
    plain = ids(content="abc")
    with_bos = ids(prompt="abc")
    assert ids(prompt="abc", add_special_tokens=False) == plain
    assert ids(content="abc", add_special=True) == with_bos and with_bos[-len(plain):] == plain
    assert ids(prompt="<|im_start|>a", add_special_tokens=False)[0] == 1  # names a control token
    assert ids(prompt="", add_special_tokens=False) == []


def test_messages(solo):
    s, r = solo.post("/tokenize", {"messages": MESSAGES, "return_token_strs": True})
    c = solo.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})[1]
    assert s == 200 and r["count"] == c["usage"]["prompt_tokens"]
    assert "".join(r["token_strs"]).endswith("<|im_start|>assistant\n")
    s, back = solo.post("/detokenize", {"tokens": r["tokens"]})
    assert s == 200 and back["prompt"] == back["content"] and MESSAGES[1]["content"] in back["prompt"]
    again = solo.post("/tokenize", {"prompt": back["prompt"], "add_special_tokens": False})[1]
    assert again["count"] < r["count"]  # here <|im_end|> of the user is a control token


@pytest.mark.parametrize("text", ["", "a", "Grüße, 世界 🙂", "x" * 20000, "a\nb\t c\u0000d", "<think>x</think>"])
def test_round_trip(tiny, text):
    tokens = tiny.post("/tokenize", {"content": text})[1]["tokens"]
    assert tiny.post("/v1/detokenize", {"tokens": tokens}) == (200, {"prompt": text, "content": text})


def test_parts_of_characters(tiny):
    """Ids that are no text by themselves give U+FFFD, in valid JSON."""
    for i in range(307):
        s, r = tiny.post("/detokenize", {"tokens": [i]})
        assert s == 200 and isinstance(r["prompt"], str)


@pytest.mark.parametrize("path,body,param", [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"content": ["a"]}, "content"), ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"), ("/tokenize", {"prompt": "a", "add_special_tokens": "x"}, "add_special_tokens"),
    ("/tokenize", {"prompt": "a", "model": "nope"}, "model"), ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [307]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [1.5]}, "tokens"),
    ("/detokenize", {"tokens": [None]}, "tokens"), ("/detokenize", [], None), ("/tokenize", b"{", None)])
def test_refusals(tiny, path, body, param):
    s, r = tiny.post(path, body)
    assert s == (404 if param == "model" else 400) and r["error"]["param"] == param and r["error"]["message"]


def test_long_bodies_hold_nobody_up(tiny):
    """Long bodies go to other threads; clients may leave meanwhile."""
    body = json.dumps({"content": "lorem ipsum 123 " * 60000}).encode()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        long = [pool.submit(tiny.post, "/tokenize", body) for _ in range(3)]
        for _ in range(6):
            with socket.create_connection(("127.0.0.1", tiny.port)) as s:
                s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert tiny.get("/health")[0] == 200
        answers = [f.result() for f in long]
    assert {s for s, _ in answers} == {200} and len({tuple(r["tokens"]) for _, r in answers}) == 1
    assert tiny.post("/detokenize", {"tokens": answers[0][1]["tokens"]})[1]["prompt"] == "lorem ipsum 123 " * 60000
