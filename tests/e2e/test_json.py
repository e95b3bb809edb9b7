"""Bodies that are JSON, or nearly, at every endpoint that takes one."""
import http.client
import json

import pytest

from conftest import ROOT, TINY, Cluster, running

CASES = {name: text.encode("latin-1") for name, text in
         json.loads((ROOT / "tests" / "data" / "JSONTestSuite" / "parsing.json").read_text()).items()}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"]
# JSON that is refused all the same: a key with a NUL is not supported, and one that appears twice is a mistake.
REFUSED = ("y_object_escaped_null_in_key.json", "y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json")
BODIES = {"/v1/chat/completions": b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"extra":%s}',
          "/v1/completions": b'{"prompt":"a","max_tokens":1,"extra":%s}', "/v1/responses": b'{"input":"a","max_output_tokens":1,"extra":%s}',
          "/v1/embeddings": b'{"input":"a","extra":%s}',
          "/tokenize": b'{"prompt":"a","extra":%s}', "/detokenize": b'{"tokens":[5],"extra":%s}'}


@pytest.fixture(scope="module")
def tiny():
    yield from running(Cluster(model=TINY / "qwen3"))


def send(connection, path, body):
    connection.request("POST", path, body)
    r = connection.getresponse()
    return r.status, json.loads(r.read())


@pytest.mark.parametrize("path", PATHS)
def test_as_the_body(tiny, path):
    """None of them is a request; those that are JSON are refused for that and not as JSON."""
    c = http.client.HTTPConnection("127.0.0.1", tiny.port, timeout=60)
    for name, body in CASES.items():
        s, r = send(c, path, body)
        assert s == 400 and r["error"]["message"], (name, r)
        if name.startswith("n_"):
            assert r["error"]["code"] == "invalid_json", (name, r)
        elif name.startswith("y_") and name not in REFUSED:
            assert "not valid JSON" not in r["error"]["message"], (name, r)


@pytest.mark.parametrize("path", PATHS)
def test_as_a_member(tiny, path):
    """Inside of a request that is good otherwise: an unknown field may have any value."""
    c = http.client.HTTPConnection("127.0.0.1", tiny.port, timeout=60)
    for name, body in CASES.items():
        if name.startswith("i_"):
            s, r = send(c, path, BODIES[path] % body)
            assert s in (200, 400), (name, r)
        elif name.startswith("y_") and name not in REFUSED:
            s, r = send(c, path, BODIES[path] % body)
            assert s == 200, (name, r)
    for name in REFUSED:
        s, r = send(c, path, BODIES[path] % CASES[name])
        assert s == 400 and r["error"]["code"] == "invalid_json", (name, r)
