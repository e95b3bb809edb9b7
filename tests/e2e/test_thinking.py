"""Thinking and tool calls through the real daemons: what is told apart, the limit of thinking, and
that it holds when a worker dies. The default model does not think by itself; a template that ends in
the opening tag makes all of its answer thinking until the limit closes it."""
import concurrent.futures
import json

import pytest

from conftest import Cluster, chat, running, wait_for

TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking | default(true) %}{{ '<think>\\n' }}{% endif %}"
)
LIMIT, TAG = 40, 3  # tokens of "</think>" in the default model's vocabulary


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "thinking.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def thinker(template):
    yield from running(Cluster(prefill=2, decode=2, sets=[f"routerd.chat_template={template}",
                                                          "routerd.reasoning_efforts=low:12"]))


def ask(cluster, stream=False, **kw):
    """(reasoning, content, finish_reason, usage)"""
    body = {"messages": [{"role": "user", "content": "Tell me about Paris."}], "temperature": 0, **kw}
    if not stream:
        status, r = cluster.post("/v1/chat/completions", body)
        assert status == 200, r
        m = r["choices"][0]["message"]
        return m.get("reasoning_content") or "", m["content"] or "", r["choices"][0]["finish_reason"], r["usage"]
    reasoning = content = ""
    finish = usage = None
    events = cluster.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    for e in events[:-1]:
        usage = e.get("usage") or usage
        for c in e["choices"]:
            reasoning += c["delta"].get("reasoning_content") or ""
            content += c["delta"].get("content") or ""
            finish = c["finish_reason"] or finish
    return reasoning, content, finish, usage


def thinking_tokens(usage):
    return usage["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_without_limit_all_is_thinking(thinker, stream):
    reasoning, content, finish, usage = ask(thinker, stream, max_tokens=20, ignore_eos=True)
    assert reasoning and not content and finish == "length"
    assert thinking_tokens(usage) == usage["completion_tokens"] == 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [{"thinking_token_budget": 12}, {"reasoning": {"max_tokens": 12}},
                                    {"reasoning_effort": "low"}])
def test_limit_closes_thinking(thinker, budget, stream):
    reasoning, content, finish, usage = ask(thinker, stream, max_tokens=30, ignore_eos=True, **budget)
    assert reasoning and content and "think>" not in reasoning + content
    assert thinking_tokens(usage) == 12 + TAG and usage["completion_tokens"] == 30
    free, *_ = ask(thinker, max_tokens=12, ignore_eos=True)
    assert free.strip() == reasoning.strip()


def test_limit_zero_and_off(thinker):
    reasoning, content, _, usage = ask(thinker, max_tokens=12, thinking_token_budget=0, ignore_eos=True)
    assert not reasoning and content and thinking_tokens(usage) == TAG
    reasoning, content, _, usage = ask(thinker, max_tokens=12, reasoning_effort="none")
    assert not reasoning and content and thinking_tokens(usage) == 0
    off = ask(thinker, max_tokens=12, chat_template_kwargs={"enable_thinking": False})
    assert off[:2] == (reasoning, content)


def test_stop_strings_and_logprobs(thinker):
    plain = ask(thinker, max_tokens=30, thinking_token_budget=8, ignore_eos=True)
    word = plain[0].split()[0]
    stopped = ask(thinker, max_tokens=30, thinking_token_budget=8, ignore_eos=True, stop=["ZZZZ", "</th"])
    assert stopped[:2] == plain[:2] and word
    _, r = thinker.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Tell me about Paris."}], "temperature": 0, "max_tokens": 16,
        "thinking_token_budget": 8, "ignore_eos": True, "logprobs": True})
    assert len(r["choices"][0]["logprobs"]["content"]) == 16
    hidden = ask(thinker, max_tokens=30, thinking_token_budget=8, ignore_eos=True, include_reasoning=False)
    assert hidden[0] == "" and hidden[1] == plain[1]


def test_limit_holds_when_a_worker_dies(thinker):
    """A decode worker is killed while eight answers think: the attempts after it count on from where
    they were, before, at and behind the limit."""
    topics = ["the sea", "a clock", "bread", "winter", "a bridge", "the moon", "a library", "trains"]

    def one(i):
        return ask(thinker, stream=True, messages=[{"role": "user", "content": f"Tell me about {topics[i]}."}],
                   max_tokens=LIMIT + 60, thinking_token_budget=LIMIT + 3 * i, ignore_eos=True)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        want = list(pool.map(one, range(8)))
        before = thinker.sum("baton_retries_total")
        running_now = pool.map(one, range(8))
        wait_for(lambda: thinker.sum("baton_requests_running") == 8, 60)
        tokens = thinker.sum("baton_generated_tokens_total")
        wait_for(lambda: thinker.sum("baton_generated_tokens_total") > tokens + 20, 60, every=0.01)
        name = thinker.kill_busy("decoded-1", "decoded-2")
        got = list(running_now)
    for i in range(8):
        assert got[i][:3] == want[i][:3]
        assert thinking_tokens(got[i][3]) == thinking_tokens(want[i][3]) == LIMIT + 3 * i + TAG
    assert thinker.sum("baton_retries_total") > before, "the kill hit running streams"
    thinker.local("start", name)
    wait_for(lambda: thinker.status()[name][1] == "ready", 30)


CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def call_messages():
    """A conversation of the same call again and again: the model goes on with it."""
    out = []
    for _ in range(4):
        out += [{"role": "user", "content": "Weather in Paris?"}, {"role": "assistant", "content": CALL}]
    return out + [{"role": "user", "content": "Weather in Paris?"}]


def test_tool_call(thinker):
    body = {"messages": call_messages(), "temperature": 0, "max_tokens": 48, "tools": TOOLS,
            "chat_template_kwargs": {"enable_thinking": False}}
    raw = thinker.post("/v1/chat/completions", {**body, "tool_choice": "none"})[1]["choices"][0]
    if not raw["message"]["content"].startswith(CALL[:60]):
        pytest.skip("the model does not go on with the call: " + raw["message"]["content"][:80])
    c = thinker.post("/v1/chat/completions", body)[1]["choices"][0]
    assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None
    f = c["message"]["tool_calls"][0]["function"]
    assert f["name"] == "get_weather" and json.loads(f["arguments"]) == {"city": "Paris"}
    arguments, names, finish, pieces = "", [], None, 0
    for e in thinker.stream("/v1/chat/completions", body)[:-1]:
        for d in e["choices"]:
            finish = d["finish_reason"] or finish
            for t in d["delta"].get("tool_calls", []):
                names += [t["function"]["name"]] if "name" in t["function"] else []
                arguments += t["function"]["arguments"]
                pieces += 1
            assert not d["delta"].get("content")
    assert names == ["get_weather"] and json.loads(arguments) == {"city": "Paris"}
    assert finish == "tool_calls" and pieces > 1
    cut = thinker.post("/v1/chat/completions", {**body, "max_tokens": 20})[1]["choices"][0]
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize("arguments", ["{}", {}, '{"city": "Paris"}'])
def test_tool_round(thinker, arguments):
    """B16: null, absent and empty content of a message with calls are the same."""
    tokens = set()
    for content in ({"content": None}, {}, {"content": ""}):
        status, r = thinker.post("/v1/chat/completions", {"temperature": 0, "max_tokens": 1, "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", **content, "tool_calls": [{"id": "c1", "type": "function", "function": {
                "name": "get_weather", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]})
        assert status == 200, r
        tokens.add(r["usage"]["prompt_tokens"])
    short = chat(thinker, "Weather?", max_tokens=1)[1]["usage"]["prompt_tokens"]
    assert len(tokens) == 1 and tokens.pop() > short + 10
