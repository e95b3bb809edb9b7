"""docs/openapi.yaml says what the router does: the same paths, methods and fields, and answers of the form that it
promises. schemathesis makes requests from it, good and bad ones."""
import concurrent.futures
import copy
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from conftest import ROOT, SLOW, TINY, Cluster, running

SPEC = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
SCHEMAS = SPEC["components"]["schemas"]
# Fields that are read, and left out of the specification: older names, and what few clients send.
UNLISTED = {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
            "json_schema", "grammar", "regex", "documents", "spaces_between_special_tokens"}
COMPLETION_ONLY = {"add_special_tokens"}


@pytest.fixture(scope="module")
def tiny():
    """A short context, so that answers are."""
    yield from running(Cluster(model=TINY / "qwen3", sets=("routerd.context_length=64",)))


def fields(name):
    """name -> schema of all fields of a request."""
    schema = SCHEMAS[name]
    out = {}
    for base in schema.get("allOf", []):
        out |= fields(base["$ref"].rsplit("/", 1)[1])
    return out | schema["properties"]


def routes():
    """path -> methods, from the router's source."""
    source = (ROOT / "routerd" / "server.c").read_text().replace('"\n            "', "")
    table = source[source.index("struct route routes[] = {"):]
    table = re.sub(r'"\s+"', "", table[:table.index("};")].replace("MODELS", '"/v1/models"'))
    return {path.replace("*", "{name}"): methods for path, methods in re.findall(r'{"([^"]*)",\s*"([^"]*)"', table)}


def test_paths_and_methods(tiny):
    listed = {p: {m.upper() for m in ops if m != "servers"} for p, ops in SPEC["paths"].items()}
    assert {p: set(m.split(", ")) - {"HEAD"} for p, m in routes().items()} == listed
    for path, methods in listed.items():
        base = tiny.admin if path.startswith("/admin/") else tiny.url
        with urllib.request.urlopen(urllib.request.Request(base + path.replace("{name}", "qwen3"), method="OPTIONS")) as r:
            assert set(r.headers["Allow"].split(", ")) - {"HEAD", "OPTIONS"} == methods, path


BODIES = {"ChatRequest": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
          "CompletionRequest": ("/v1/completions", {"prompt": "a"}), "ResponseRequest": ("/v1/responses", {"input": "a"}),
          "EmbeddingRequest": ("/v1/embeddings", {"input": "a"}),
          "TokenizeRequest": ("/tokenize", {"prompt": "a"}), "DetokenizeRequest": ("/detokenize", {"tokens": [5]})}


@pytest.mark.parametrize("name", BODIES)
def test_every_listed_field_is_read(tiny, name):
    """A value of no allowed type is refused, and the field named; null is the default."""
    path, body = BODIES[name]
    for field, schema in fields(name).items():
        wrong = 5 if "object" in json.dumps(schema) or field == "include" else {"no": ["type"]}
        given = {**body, field: wrong}
        if field in ("content", "messages") and name == "TokenizeRequest":
            del given["prompt"]
        s, r = tiny.post(path, given)
        assert s == 400 and r["error"]["param"] == field, (field, wrong, r)
        if field not in body:
            s, r = tiny.post(path, {**body, field: None, **({"max_tokens": 1} if "max_tokens" in fields(name) else {})})
            assert s == 200, (field, r)


def test_every_read_field_is_listed():
    table = (ROOT / "routerd" / "known.c").read_text()
    for name, kinds in re.findall(r'{"(\w+)", (\w+), TAKEN', table):
        for kind, schema in (("CHAT", "ChatRequest"), ("COMPLETION", "CompletionRequest")):
            if kinds in (kind, "BOTH") and name not in UNLISTED | (COMPLETION_ONLY if kind == "CHAT" else set()):
                assert name in fields(schema), (name, schema)


def narrowed():
    """The specification for the tiny model: names that exist, ids of its vocabulary, few choices."""
    spec = copy.deepcopy(SPEC)
    schemas = spec["components"]["schemas"]
    for name in ("Sampling", "EmbeddingRequest", "TokenizeRequest", "DetokenizeRequest"):
        schemas[name]["properties"]["model"] = {"enum": ["qwen3", None]}
    schemas["Generation"]["properties"]["n"]["maximum"] = 3
    for schema in schemas.values():
        narrow_ids(schema)
    for prompt in schemas["CompletionRequest"]["properties"]["prompt"], schemas["EmbeddingRequest"]["properties"]["input"]:
        prompt["anyOf"][0]["minLength"] = prompt["anyOf"][1]["items"]["minLength"] = 1
    return spec


def narrow_ids(schema):
    if isinstance(schema, list):
        for s in schema:
            narrow_ids(s)
    elif isinstance(schema, dict):
        if schema.get("items") == {"type": "integer", "minimum": 0}:
            schema["items"]["maximum"] = 306
        for s in schema.values():
            narrow_ids(s)


def schemathesis(cluster, tmp_path, *args):
    """How many requests were made; all answers are as promised."""
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "openapi.json"
    spec = narrowed()
    del spec["paths"]["/debug/live"]  # its answer has no end
    path.write_text(json.dumps(spec))
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance," \
             "negative_data_rejection,unsupported_method,missing_required_header"
    p = subprocess.run([Path(sys.executable).parent / "st", "run", path, "--url", cluster.url, "--checks", checks,
                        "--request-timeout", str(60 * SLOW), "--continue-on-failure", "--no-color",
                        "--suppress-health-check", "too_slow",  # how fast it thinks of requests is not ours
                        "--exclude-path-regex", "^/admin/", *args],  # they would drain the workers
                       cwd=tmp_path, capture_output=True, text=True, timeout=3600 * SLOW)
    assert p.returncode == 0, p.stdout[-6000:] + p.stderr[-2000:]
    return int(re.search(r"(\d+) generated, \1 passed", p.stdout).group(1))


@pytest.fixture
def unharmed(tiny):
    """The same processes, no answer of 5xx, and nothing left running."""
    def state():
        errors = {k: v for k, v in tiny.metrics().items() if k[0] == "baton_requests_total" and 'code="5' in str(k[1])}
        return {n: s[0] for n, s in tiny.status().items()}, errors
    before = state()
    yield
    assert state() == before
    tiny.settle(10)


def test_generated_requests(tiny, tmp_path, unharmed):
    n = schemathesis(tiny, tmp_path, "--phases", "fuzzing", "--max-examples", "4", "--seed", "1")
    n += schemathesis(tiny, tmp_path, "--phases", "coverage", "--include-path", "/v1/responses", "--seed", "1")
    assert n >= 300


@pytest.mark.long
def test_many_generated_requests(tiny, tmp_path, unharmed):
    seed = os.environ.get("BATON_SEED") or str(int.from_bytes(os.urandom(3)))
    print("seed", seed)
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
    fuzzing = ("--phases", "fuzzing", "--max-examples", "400")
    parts = [("--phases", "coverage"), (*fuzzing, *(a for p in paths for a in ("--include-path", p))),
             (*fuzzing, *(a for p in paths for a in ("--exclude-path", p)))]
    # Processes and not --workers: Hypothesis parses source in several threads at once, which Python 3.11 fails at.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        counts = list(pool.map(lambda i: schemathesis(tiny, tmp_path / str(i), *parts[i], "--seed", seed), range(len(parts))))
    print("requests", counts)
    assert sum(counts) >= 5000, counts
