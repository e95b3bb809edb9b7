"""Structured output with the real model: what comes is of the form that was asked for, always."""
import collections
import concurrent.futures
import json
import re
import sys
import threading

import jsonschema
import pytest

from conftest import ROOT, chat, running, Cluster, wait_for

sys.path.insert(0, str(ROOT / "tests" / "text"))
import random_schema  # noqa: E402


def formed(name, schema):
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def closing(cluster):
    """A bias for what comes to an end: a small model writes for ever where the schema lets it."""
    bias = {}
    for text in ('"', '"}', '",', "}", "]", "null", "},", "}}", "]}"):
        ids = cluster.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
        if len(ids) == 1:
            bias[str(ids[0])] = 8
    return bias


def outcome(cluster, seed, bias, longest):
    """What becomes of an answer by the random schema of this seed."""
    schema = random_schema.make(seed)
    for kw in ({}, {"logit_bias": bias, "frequency_penalty": 0.5}):
        s, r = chat(cluster, "Write something.", temperature=1, seed=seed, max_tokens=longest,
                    response_format=formed("x", schema), **kw)
        if s != 200 or r["choices"][0]["finish_reason"] != "length":
            break
    if s == 400:
        assert r["error"]["param"].split(".")[0] == "response_format", r
        return "refused"
    assert s == 200, (seed, r)
    choice = r["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut"
    try:
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(
            json.loads(choice["message"]["content"]))
    except (ValueError, jsonschema.ValidationError) as e:
        return f"INVALID: seed {seed}: {choice['message']['content'][:200]}: {str(e)[:200]}"
    return "valid"


def check_schemas(cluster, seeds, longest):
    bias = closing(cluster)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        count = collections.Counter(pool.map(lambda s: outcome(cluster, s, bias, longest), seeds))
    print(dict(count))
    assert not [k for k in count if k.startswith("INVALID")], count
    assert count["valid"] >= 0.95 * len(seeds) - 1 and count["refused"] <= 0.02 * len(seeds), count
    cluster.settle()


def test_random_schemas(solo):
    check_schemas(solo, range(1, 13), 250)


@pytest.mark.long
def test_500_random_schemas(solo):
    check_schemas(solo, range(1, 501), 700)


def test_each_way_to_ask(solo):
    def said(**kw):
        s, r = chat(solo, "Tell me about Paris.", max_tokens=200, **kw)
        assert s == 200, r
        assert r["choices"][0]["finish_reason"] in ("stop", "tool_calls"), r
        return r["choices"][0]["message"]

    thing = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
                                              "size": {"type": "integer", "minimum": 1, "maximum": 9}},
             "required": ["name", "size"], "additionalProperties": False}
    for kw in ({"response_format": formed("thing", thing)}, {"structured_outputs": {"json": thing}},
               {"guided_json": thing}):
        jsonschema.validate(json.loads(said(**kw)["content"]), thing)
    assert re.fullmatch(r"[A-Z][a-z]{2,8}, \d{3}", said(structured_outputs={"regex": r"[A-Z][a-z]{2,8}, \d{3}"})["content"])
    assert said(structured_outputs={"choice": ["large", "small"]})["content"] in ("large", "small")
    assert re.fullmatch(r"(ab|cd)e", said(structured_outputs={"grammar": 'root ::= ("ab" | "cd") "e"'})["content"])
    tool = {"type": "function", "function": {"name": "weigh", "parameters": thing}}
    for choice in ("required", {"type": "function", "function": {"name": "weigh"}}):
        call = said(tools=[tool], tool_choice=choice)["tool_calls"][0]["function"]
        assert call["name"] == "weigh"
        jsonschema.validate(json.loads(call["arguments"]), thing)


def test_forms_and_paths_together(solo):
    """Each of n answers has the form; what contradicts it is not applied where it would leave nothing."""
    form = {"structured_outputs": {"regex": "[0-9]{6}"}}
    s, r = chat(solo, "A number, please.", n=4, temperature=1, seed=3, frequency_penalty=2, bad_words=["7"],
                min_tokens=3, max_tokens=30, **form)
    answers = [c["message"]["content"] for c in r["choices"]]
    assert s == 200 and all(re.fullmatch("[0-9]{6}", a) for a in answers), answers
    assert not any("7" in a for a in answers)
    s, r = chat(solo, "A number, please.", bad_words=[str(i) for i in range(10)], max_tokens=30, **form)
    assert re.fullmatch("[0-9]{6}", r["choices"][0]["message"]["content"])


@pytest.mark.parametrize("kw,param", [
    ({"response_format": formed("x", {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}})}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs")])
def test_what_cannot_be_is_refused(solo, kw, param):
    s, r = chat(solo, "hi", **kw)
    assert s == 400 and r["error"]["param"].split(".")[0] == param and len(r["error"]["message"]) > 20, r


@pytest.fixture(scope="module")
def pair():
    yield from running(Cluster(prefill=1, decode=2))


def test_a_kill_in_mid_json(pair):
    """The place in the grammar goes with the sequence: prompt and emitted ids say it."""
    row = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 9999},
                                            "kind": {"enum": ["a", "bc", "def"]}},
           "required": ["id", "kind"], "additionalProperties": False}
    schema = {"type": "array", "items": row, "minItems": 14, "maxItems": 14}
    body = {"messages": [{"role": "user", "content": "List."}], "temperature": 1, "seed": 5,
            "max_tokens": 900, "response_format": formed("rows", schema)}
    whole = pair.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(whole), schema)
    got, before = {}, pair.sum("baton_generated_tokens_total")
    retries = pair.sum("baton_retries_total")
    t = threading.Thread(target=lambda: got.update(ev=pair.stream("/v1/chat/completions", body)))
    t.start()
    wait_for(lambda: pair.sum("baton_generated_tokens_total") >= before + 20, 30)
    victim = pair.kill_busy("decoded-1", "decoded-2")
    t.join()
    text = "".join(c["delta"].get("content") or "" for e in got["ev"] if e != "[DONE]" for c in e["choices"])
    assert text == whole
    assert pair.sum("baton_retries_total") > retries, "the kill hit the answer"
    pair.local("start", victim)
    wait_for(lambda: pair.get("/ready")[0] == 200, 20)
    pair.settle(10)
    assert pair.sum("baton_divergence_total") == 0
