"""The official openai client against a cluster: chat, completions, responses; sync and async, whole and
streamed; tools; structured output by .parse. What the two kinds of client say must be the same."""
import asyncio
import json

import openai
import pydantic
import pytest
from openai.types.responses import Response

from conftest import Cluster, running
from test_thinking import template  # noqa: F401  (a fixture)

JAPAN = "What is the capital of Japan?"
GOLDEN_JAPAN = "The capital of Japan is Tokyo."


@pytest.fixture(scope="module")
def thinker(template):  # noqa: F811
    yield from running(Cluster(sets=[f"routerd.chat_template={template}"]))


class Both:
    """Runs a call with the sync and with the async client; both must give the same."""

    def __init__(self, url):
        self.args = dict(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)
        self.sync = openai.OpenAI(**self.args)

    def __call__(self, path, **kw):
        a = self.one(self.sync, path, kw)
        b = asyncio.run(self.alone(path, kw))
        assert self.plain(a) == self.plain(b)
        return a

    @staticmethod
    def find(client, path):
        for name in path.split("."):
            client = getattr(client, name)
        return client

    def one(self, client, path, kw):
        r = self.find(client, path)(**kw)
        return list(r) if kw.get("stream") else r

    async def alone(self, path, kw):
        async with openai.AsyncOpenAI(**self.args) as client:
            r = await self.find(client, path)(**kw)
            return [e async for e in r] if kw.get("stream") else r

    @classmethod
    def plain(cls, r):
        """Without what differs from call to call: ids and times, and what was cached."""
        if isinstance(r, list):
            return [cls.plain(x) for x in r]
        if isinstance(r, pydantic.BaseModel):
            r = r.model_dump()
        if isinstance(r, dict):
            return {k: cls.plain(v) for k, v in r.items()
                    if k not in ("id", "item_id", "call_id", "created", "created_at", "cached_tokens")}
        return r


@pytest.fixture(scope="module")
def both(solo):
    return Both(solo.url)


@pytest.fixture(scope="module")
def model(both):
    return both.sync.models.list().data[0].id


def user(text):
    return [{"role": "user", "content": text}]


TOOL = {"name": "get_weather", "description": "The weather of a city", "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
                       "required": ["city", "days"], "additionalProperties": False}}


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    large: bool


# ---- chat and completions ----


def test_chat(both, model):
    kw = dict(model=model, messages=user(JAPAN), temperature=0)
    r = both("chat.completions.create", **kw)
    assert r.choices[0].message.content == GOLDEN_JAPAN and r.choices[0].finish_reason == "stop"
    events = both("chat.completions.create", **kw, stream=True, stream_options={"include_usage": True})
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == GOLDEN_JAPAN
    assert events[-1].usage.total_tokens == r.usage.total_tokens


def test_chat_stream_helper(both, model):
    with both.sync.chat.completions.stream(model=model, messages=user(JAPAN), temperature=0) as s:
        text = "".join(e.delta for e in s if e.type == "content.delta")
        assert text == s.get_final_completion().choices[0].message.content == GOLDEN_JAPAN


def test_completion(both, model):
    kw = dict(model=model, prompt=["The sky is", "Water is"], max_tokens=6, temperature=0)
    r = both("completions.create", **kw)
    events = [e.choices[0] for e in both.sync.completions.create(**kw, stream=True) if e.choices]
    for i in range(2):
        assert "".join(c.text for c in events if c.index == i) == r.choices[i].text


def test_chat_tools(both, model):
    kw = dict(model=model, messages=user("How is the weather in Paris?"), temperature=0, max_tokens=120,
              tools=[{"type": "function", "function": TOOL}], tool_choice={"type": "function", "function": {"name": "get_weather"}})
    call = both("chat.completions.create", **kw).choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and set(json.loads(call.function.arguments)) == {"city", "days"}
    parts = [c for e in both("chat.completions.create", **kw, stream=True) for c in (e.choices[0].delta.tool_calls or [])]
    assert parts[0].function.name == "get_weather" and parts[0].id
    assert "".join(p.function.arguments for p in parts) == call.function.arguments
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}
    r = both.sync.chat.completions.create(**{**kw, "tools": [other, *kw["tools"]], "tool_choice": allowed})
    assert r.choices[0].message.tool_calls[0].function == call.function
    again = [*user("x"), {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
             {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert both("chat.completions.create", model=model, messages=again, max_tokens=4, temperature=0).choices[0].message.content is not None


def test_chat_parse(both, model):
    r = both("chat.completions.parse", model=model, messages=user("Name a city."), temperature=0, max_tokens=60, response_format=City)
    assert isinstance(r.choices[0].message.parsed, City)


# ---- responses ----


def test_response(both, model):
    r = both("responses.create", model=model, input=JAPAN, temperature=0)
    assert r.output_text == GOLDEN_JAPAN and r.status == "completed" and r.model == model
    assert r.store is False and r.previous_response_id is None and r.error is None and r.incomplete_details is None
    chat = both.sync.chat.completions.create(model=model, messages=user(JAPAN), temperature=0)
    assert (r.usage.input_tokens, r.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    assert [i.type for i in r.output] == ["message"] and r.output[0].status == "completed"
    Response.model_validate(r.model_dump(), strict=False)


def test_response_repeats_the_request(both, model):
    r = both.sync.responses.create(model=model, input="hi", instructions="Be brief.", max_output_tokens=3, metadata={"a": "b"},
                                   temperature=0.5, top_p=0.9, tools=[{"type": "function", **TOOL}], tool_choice="none",
                                   parallel_tool_calls=False, text={"verbosity": "low"}, store=True, user="u")
    assert r.instructions == "Be brief." and r.max_output_tokens == 3 and r.metadata == {"a": "b"} and r.temperature == 0.5
    assert r.top_p == 0.9 and r.tools[0].name == TOOL["name"] and r.tool_choice == "none" and r.parallel_tool_calls is False
    assert r.store is False and r.user == "u"  # nothing is stored, whatever was asked for


def test_response_instructions_are_a_system_message(both, model):
    a = both.sync.responses.create(model=model, instructions="Speak like a pirate.", input=JAPAN, temperature=0, max_output_tokens=16)
    b = both.sync.chat.completions.create(model=model, temperature=0, max_tokens=16,
                                          messages=[{"role": "system", "content": "Speak like a pirate."}, *user(JAPAN)])
    assert a.output_text == b.choices[0].message.content and a.usage.input_tokens == b.usage.prompt_tokens


def test_response_stream(both, model):
    events = both("responses.create", model=model, input=JAPAN, temperature=0, stream=True)
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == GOLDEN_JAPAN
    whole = both.sync.responses.create(model=model, input=JAPAN, temperature=0)
    assert Both.plain(events[-1].response) == Both.plain(whole)
    assert {getattr(e, "item_id", events[2].item.id) for e in events} == {events[2].item.id}


def test_response_stream_helper(both, model):
    with both.sync.responses.stream(model=model, input=JAPAN, temperature=0) as s:
        deltas = [e for e in s if e.type == "response.output_text.delta"]
        assert deltas[-1].snapshot == s.get_final_response().output_text == GOLDEN_JAPAN


@pytest.mark.parametrize("stream", [False, True])
def test_response_cut(both, model, stream):
    r = both("responses.create", model=model, input=JAPAN, temperature=0, max_output_tokens=3, stream=stream)
    if stream:
        assert r[-1].type == "response.incomplete"
        r = r[-1].response
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.usage.output_tokens == 3
    assert r.output[-1].status == "incomplete" and GOLDEN_JAPAN.startswith(r.output_text)


def test_response_conversation(both, model):
    """A whole conversation is sent back, as nothing is stored."""
    first = both.sync.responses.create(model=model, input=JAPAN, temperature=0)
    turns = [*user(JAPAN), *first.output, *user("And of Italy?")]
    a = both("responses.create", model=model, temperature=0, max_output_tokens=16,
             input=[t if isinstance(t, dict) else t.model_dump(exclude_none=True) for t in turns])
    b = both.sync.chat.completions.create(model=model, temperature=0, max_tokens=16, messages=[
        *user(JAPAN), {"role": "assistant", "content": GOLDEN_JAPAN}, *user("And of Italy?")])
    assert a.output_text == b.choices[0].message.content


@pytest.mark.parametrize("field,value", [("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True),
                                         ("truncation", "auto"), ("prompt", {"id": "pmpt_1"}), ("tools", [{"type": "web_search"}]),
                                         ("max_output_tokens", 0), ("temperature", 3), ("input", []), ("text", {"format": {"type": "xml"}}),
                                         ("include", ["message.output_text"])])
def test_response_refusals(both, model, field, value):
    with pytest.raises(openai.BadRequestError) as e:
        both.sync.responses.create(**{"model": model, "input": "hi", field: value})
    assert e.value.param.split(".")[0] == field and e.value.param in e.value.body["message"]


def test_response_errors(both, model):
    with pytest.raises(openai.NotFoundError) as e:
        both.sync.responses.create(model="nope", input="hi")
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as e:
        both.sync.responses.create(model=model, input="word " * 9000)
    assert e.value.code == "context_length_exceeded" and e.value.param == "input"
    for call in (lambda c: c.responses.retrieve("resp_1"), lambda c: c.responses.delete("resp_1")):
        with pytest.raises(openai.NotFoundError):
            call(both.sync)


def test_response_tools(both, model):
    kw = dict(model=model, input="How is the weather in Paris?", temperature=0, max_output_tokens=120,
              tools=[{"type": "function", **TOOL}], tool_choice={"type": "function", "name": "get_weather"})
    r = both("responses.create", **kw)
    call = r.output[-1]
    assert call.type == "function_call" and call.name == "get_weather" and call.status == "completed"
    assert set(json.loads(call.arguments)) == {"city", "days"} and r.output_text == ""
    events = both("responses.create", **kw, stream=True)
    assert "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta") == call.arguments
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert len(done) == 1 and done[0].arguments == call.arguments
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    other = {"type": "function", "name": "other", "parameters": {"type": "object"}}
    r = both.sync.responses.create(**{**kw, "tools": [other, *kw["tools"]], "tool_choice": allowed})
    assert r.output[-1].name == "get_weather"
    turns = [*user("x"), call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    assert both.sync.responses.create(model=model, input=turns, tools=kw["tools"], tool_choice="none", max_output_tokens=4).usage.output_tokens >= 1


def test_response_parse(both, model):
    r = both("responses.parse", model=model, input="Name a city.", temperature=0, max_output_tokens=60, text_format=City)
    assert isinstance(r.output_parsed, City)


def test_response_logprobs(both, model):
    r = both("responses.create", model=model, input=JAPAN, temperature=0, top_logprobs=2, include=["message.output_text.logprobs"])
    items = r.output[0].content[0].logprobs
    assert "".join(i.token for i in items) == GOLDEN_JAPAN and all(len(i.top_logprobs) == 2 for i in items)
    events = both("responses.create", model=model, input=JAPAN, temperature=0, top_logprobs=2, stream=True)
    streamed = [i for e in events if e.type == "response.output_text.delta" for i in e.logprobs]
    assert [(i.token, i.logprob) for i in streamed] == [(i.token, i.logprob) for i in items]


@pytest.mark.parametrize("stream", [False, True])
def test_response_reasoning(thinker, stream):
    """Thinking is an item of its own, before the message; sent back, it is thinking again."""
    both = Both(thinker.url)
    kw = dict(model="m", input="Tell me about Paris.", temperature=0, max_output_tokens=30,
              extra_body={"thinking_token_budget": 12, "ignore_eos": True})
    kw["model"] = both.sync.models.list().data[0].id
    r = both("responses.create", **kw, stream=stream)
    if stream:
        kinds = [e.type for e in r]
        assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
        thought = "".join(e.delta for e in r if e.type == "response.reasoning_text.delta")
        r = r[-1].response
        assert r.output[0].content[0].text == thought
    assert [i.type for i in r.output] == ["reasoning", "message"] and r.output[0].summary == []
    chat = both.sync.chat.completions.create(model=kw["model"], messages=user(kw["input"]), temperature=0, max_tokens=30,
                                             extra_body=kw["extra_body"])
    assert r.output[0].content[0].text == chat.choices[0].message.reasoning_content
    assert r.output_text == chat.choices[0].message.content
    assert r.usage.output_tokens_details.reasoning_tokens == chat.usage.completion_tokens_details.reasoning_tokens > 0
    turns = [*user("x"), *(i.model_dump(exclude_none=True) for i in r.output), *user("y")]
    assert both.sync.responses.create(model=kw["model"], input=turns, max_output_tokens=2, reasoning={"effort": "none"}).status
