"""The oracle itself: what it must not let pass."""
import copy

import pytest

from chaos import REQUEST_TIMEOUT, SLOW, Case
from client import Outcome, _take_event
from faults import ROWS
from load import Load
from proxy import HEADER, Frames


def stream(*events):
    out = Outcome(status=200)
    for e in events:
        _take_event(out, e)
    return out


def token(text, i, finish="null", lp=-0.5):
    return (f'{{"choices": [{{"text": "{text}", "token_ids": [{i}], "finish_reason": {finish}, '
            f'"logprobs": {{"tokens": ["{text}"], "token_logprobs": [{lp}]}}}}]}}')


USAGE = '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'
GOOD = [token("a", 5), token("b", 6, '"length"'), USAGE, "[DONE]"]


@pytest.fixture
def load():
    some = Load(1)
    some.reference = [stream(*GOOD).answer()] * len(some.requests)
    return some


def problems(load, out, row=ROWS[0]):
    case = Case(None, load, row, 1)
    case.outcomes = [(0, out)]
    return case.problems()


def test_right_answers_pass(load):
    assert problems(load, stream(*GOOD)) == []


@pytest.mark.parametrize("events, why", [
    (GOOD[1:], "token 0 is 6 instead of 5"),
    ([GOOD[0]] + GOOD, "token 1 is 5 instead of 6"),
    ([token("a", 7)] + GOOD[1:], "token 0 is 7 instead of 5"),
    ([token("x", 5)] + GOOD[1:], "text is"),
    ([token("a", 5, lp=-0.5000001)] + GOOD[1:], "logprobs is"),
    ([GOOD[0], token("b", 6, '"stop"')] + GOOD[2:], "finish is"),
    ([GOOD[0], GOOD[1], USAGE.replace("2}", "3}"), "[DONE]"], "completion_tokens is 3 instead of 2"),
    (GOOD + ["[DONE]"], "ended more than once"),
    (GOOD + [GOOD[0]], "ended more than once"),
    ([GOOD[0], GOOD[1], GOOD[1], USAGE, "[DONE]"], "ended more than once"),
    ([GOOD[0], USAGE, "[DONE]"], "an end without finish_reason"),
    ([GOOD[0], '{"error": {"message": "x", "type": "server_error"}}', "[DONE]"], "beside a regular end"),
    ([GOOD[0], '{"error": "x"}'], "malformed error"),
    ([GOOD[0], '{"error": {"message": "x", "type": "server_error"}}'], "error event"),
    (GOOD[:2], "cut"),
])
def test_wrong_answers_do_not(load, events, why):
    found = problems(load, stream(*events))
    assert len(found) == 1 and why in found[0], found


def test_late_answers_do_not(load):
    out = stream(*GOOD)
    out.seconds = (REQUEST_TIMEOUT + 2) * SLOW
    assert "later than its deadline" in problems(load, out)[0]


def test_errors_pass_only_where_a_row_allows_them(load):
    out = Outcome(status=500, error={"message": "x", "type": "server_error"})
    assert problems(load, out) != []
    row = copy.copy(ROWS[0])
    row.allowed = ("whole", "error 500")
    assert problems(load, out, row) == []


def test_frames_come_whole_and_twice_after_the_greeting():
    frames = [bytes([n]) + bytes(HEADER - 1) + bytes(n) for n in (3, 0, 5, 1)]
    data = b"".join(frames)
    for cut in range(len(data)):
        f = Frames()
        got = f.take(data[:cut], True) + f.take(data[cut:], True)
        assert got == b"".join(frames[:2] + [x for x in frames[2:] for _ in range(2)])
        f = Frames()
        assert f.take(data[:cut], False) + f.take(data[cut:], False) == data
