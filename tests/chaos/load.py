"""The load: a fixed set of mixed requests, what each of them gives when nothing fails, and batches of
them. Greedy and seeded sampling, stop strings, log probabilities, streamed and not, completions and
chats, one token to hundreds, prompts around the edges of KV blocks and of prefill chunks."""
import asyncio
import itertools
import random

from client import ask

WORDS = ("baton runner hand line turn tape race first second falls passed cache token prompt answer "
         "the is and of from to done fresh straight").split()
LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130, 257, 500, 900, 1500]
TOKENS = [1, 2, 15, 16, 17, 40, 90, 160, 240]
SAMPLING = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.02},
]


class Load:
    """requests[i] with reference[i]."""

    def __init__(self, seed, n=32, vocab=301, context=2048):
        rng = random.Random(seed)
        self.salts = itertools.count()
        self.requests = [self._request(rng, i, vocab, context) for i in range(n)]
        self.reference = []

    def _request(self, rng, i, vocab, context):
        body = dict(SAMPLING[i % len(SAMPLING)], max_tokens=TOKENS[i % len(TOKENS)],
                    return_token_ids=True)
        if body["temperature"]:
            body["seed"] = rng.randrange(1 << 31)
        length = LENGTHS[7 * i % len(LENGTHS)]
        length = min(length, context - body["max_tokens"] - 8)
        if i % 4 == 3:
            words = " ".join(rng.choice(WORDS) for _ in range(1 + length // 8))
            body["messages"] = [{"role": "user", "content": words}]
            if i % 8 == 3:
                body.update(logprobs=True, top_logprobs=3)
        else:
            body["prompt"] = [rng.randrange(3, vocab - 2) for _ in range(length)]
            if i % 5 == 1:
                body["logprobs"] = 2
        if i % 3:
            body["ignore_eos"] = True
        return body

    def body(self, i, stream, salted=True):
        """Request i; salted: no worker has its prompt in a cache."""
        body = dict(self.requests[i])
        if stream:
            body.update(stream=True, stream_options={"include_usage": True})
        if salted:
            body["cache_salt"] = f"salt-{next(self.salts)}"
        return body

    async def learn(self, port):
        """Fills the reference, undisturbed. Some requests then get a stop string from the middle of
        their own answer."""
        gate = asyncio.Semaphore(8)

        async def one(i, stream):
            async with gate:
                out = await ask(port, self.body(i, stream))
                assert out.whole() and not out.malformed(), (i, out)
                return out

        everyone = range(len(self.requests))
        first = await asyncio.gather(*[one(i, True) for i in everyone])
        for i, out in enumerate(first):
            middle = len(out.text) // 2
            stop = out.text[middle:middle + 3]
            if i % 6 == 5 and stop.isprintable() and len(stop) == 3 and "\ufffd" not in stop:
                self.requests[i]["stop"] = [stop]
        self.reference = [o.answer() for o in await asyncio.gather(*[one(i, True) for i in everyone])]
        again = await asyncio.gather(*[one(i, False) for i in everyone])
        for i, out in enumerate(again):
            assert self.same(i, out), f"request {i} is not the same undisturbed\n{self.differs(i, out)}"

    def same(self, i, out):
        return out.answer() == self.reference[i]

    def differs(self, i, out):
        """One line that says where an answer and its reference part."""
        want, got = self.reference[i], out.answer()
        ids = [(p, a, b) for p, (a, b) in enumerate(itertools.zip_longest(want[1], got[1])) if a != b]
        if ids:
            p, a, b = ids[0]
            return (f"request {i}: token {p} is {b} instead of {a} ({len(got[1])} tokens instead of "
                    f"{len(want[1])})")
        names = ("text", "ids", "logprobs", "finish", "prompt_tokens", "completion_tokens")
        return "; ".join(f"request {i}: {n} is {str(b)[:120]} instead of {str(a)[:120]}"
                         for n, a, b in zip(names, want, got) if a != b)

    def batch(self, rng, n, **only):
        """n indices: a mix in which long prompts and long answers are never missing. only: what the
        caller needs of each (tokens: at least so many, prompt: at least so many)."""
        fits = [i for i, o in enumerate(self.reference)
                if len(o[1]) >= only.get("tokens", 0) and o[4] >= only.get("prompt", 0)]
        long_prompts = [i for i in fits if self.reference[i][4] >= 500] or fits
        long_answers = [i for i in fits if len(self.reference[i][1]) >= 80] or fits
        some = [rng.choice(long_prompts), rng.choice(long_answers)]
        some += [rng.choice(fits) for _ in range(n - 2)]
        rng.shuffle(some)
        return some
