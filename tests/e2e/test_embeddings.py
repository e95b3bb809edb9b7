"""/v1/embeddings: forms of input and output, pooling, what the vectors depend on, and what is refused."""
import asyncio
import base64
import concurrent.futures
import math
import socket
import struct
import time

import openai
import pytest

from conftest import TINY, Cluster, running, wait_for


@pytest.fixture(scope="module")
def tiny():
    yield from running(Cluster(model=TINY / "qwen3"))


def embed(cluster, input, **more):
    s, r = cluster.post("/v1/embeddings", {"input": input, **more})
    assert s == 200, r
    assert [d["index"] for d in r["data"]] == list(range(len(r["data"])))
    return [d["embedding"] for d in r["data"]]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_meaning(solo):
    """Sentences about the same thing are nearer to each other than to another one; vectors have length 1."""
    for pooling in ("mean", "last"):
        a, b, c = embed(solo, ["The cat sleeps on the sofa.", "A kitten is sleeping on the couch.",
                               "Stock prices fell sharply on Monday."], pooling=pooling)
        assert all(abs(math.sqrt(dot(v, v)) - 1) < 1e-5 for v in (a, b, c)) and len(a) == 576
        assert dot(a, b) > dot(a, c) and dot(a, b) > dot(b, c), pooling
    solo.settle()


def test_official_client(solo):
    """It asks for base64 by itself."""
    args = dict(base_url=solo.url + "/v1", api_key="none", max_retries=0)
    with openai.OpenAI(**args) as c:
        model = c.models.list().data[0].id
        r = c.embeddings.create(model=model, input=["one", "two"])
        plain = c.embeddings.create(model=model, input="one", encoding_format="float")

    async def other():
        async with openai.AsyncOpenAI(**args) as c:
            return await c.embeddings.create(model=model, input="two")

    assert r.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-7) and r.model == model
    assert asyncio.run(other()).data[0].embedding == r.data[1].embedding
    assert r.usage.prompt_tokens == r.usage.total_tokens == 2


def test_forms_of_input(tiny):
    text = "hello there"
    ids = tiny.post("/tokenize", {"prompt": text})[1]["tokens"]
    [one] = embed(tiny, text)
    assert embed(tiny, ids) == [one] and embed(tiny, [text, "x", text])[2] == one and embed(tiny, [ids, ids[:2]])[0] == one
    [coded] = embed(tiny, text, encoding_format="base64")
    raw = base64.b64decode(coded)
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(one, abs=1e-7)


def test_pooling(tiny):
    """The last token's state is that of the text that ends there; the mean is one of all of them."""
    ids = [9, 8, 7, 6, 5]
    [last] = embed(tiny, ids, pooling="last")
    [mean] = embed(tiny, ids, pooling="mean")
    assert embed(tiny, ids) == [mean] != [last]
    assert embed(tiny, ids[:1], pooling="mean") == embed(tiny, ids[:1], pooling="last")


def test_nothing_changes_them(tiny):
    """Alone, among others, after a cached prefix, cut into other chunks: the same bits."""
    long = [3 + i % 290 for i in range(1500)]
    [alone] = embed(tiny, long)
    assert embed(tiny, [[5] * 40, long, [6] * 700])[1] == alone
    tiny.post("/v1/completions", {"prompt": long, "max_tokens": 1})
    assert embed(tiny, long) == [alone]
    other = Cluster(model=TINY / "qwen3", sets=("prefill_chunk=64",))
    try:
        assert embed(other.start(), long) == [alone]
    finally:
        other.stop()
    tiny.settle()


def test_setting(tmp_path):
    c = Cluster(model=TINY / "qwen3", sets=("routerd.embedding_pooling=last",))
    try:
        c.start()
        assert embed(c, [9, 8, 7]) == embed(c, [9, 8, 7], pooling="last") != embed(c, [9, 8, 7], pooling="mean")
    finally:
        c.stop()


@pytest.mark.parametrize("body,param", [
    ({}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input"), ({"input": [307]}, "input"),
    ({"input": 5}, "input"), ({"input": ["a"] * 129}, "input"), ({"input": [5] * 3000}, "input"), ({"input": "a", "dimensions": 5}, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"), ({"input": "a", "pooling": "cls"}, "pooling"),
    ({"input": "a", "user": 5}, "user"), ({"input": ["a", 5]}, "input"), ({"input": [5, "a"]}, "input"),
    ({"input": "a", "add_special_tokens": 5}, "add_special_tokens"), ({"input": "a", "model": "no"}, "model"), ([], None), (b"{", None)])
def test_refusals(tiny, body, param):
    s, r = tiny.post("/v1/embeddings", body)
    assert s == (404 if param == "model" else 400) and r["error"]["param"] == param and r["error"]["message"], r
    if param == "input":  # in the words of the request, not in those of completions
        assert "input" in r["error"]["message"] and "prompt" not in r["error"]["message"], r


def test_prefill_worker_dies(tiny):
    """Another attempt computes it again."""
    c = Cluster(model=TINY / "qwen3", prefill=2)
    try:
        c.start()
        want = embed(c, [5, 6, 7, 8])
        c.local("stop", "prefilld-1")
        assert embed(c, [5, 6, 7, 8]) == want
    finally:
        c.stop()


def test_clients_that_leave(tiny):
    """While the body is read, while it is computed; and the router goes down only when it has answered."""
    body = b'{"input": [' + b", ".join([b"[" + b",".join([b"5"] * 1500) + b"]"] * 30) + b"]}"
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for wait in (0, 0.02, 0.2):
        with socket.create_connection(("127.0.0.1", tiny.port)) as s:
            s.sendall(head + body)
            time.sleep(wait)  # whatever it is at by then
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    tiny.settle(20)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(tiny.post, "/v1/embeddings", body)
        wait_for(lambda: tiny.sum("baton_requests_running") + tiny.sum("baton_requests_waiting") > 0, 20)
        tiny.local("stop", "routerd")
        assert answer.result()[0] == 200
    tiny.local("start", "routerd")
    tiny.settle(20)
