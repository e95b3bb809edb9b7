"""The table of faults: each row is one fault in one phase of a request's life, and what its user may
see. A row's run(c) starts the load, lets the fault happen, ends it, and returns; the caller checks every
outcome, the KV blocks and the counters (chaos.py).

Rows of the first part use fault points in the programs (docs/HACKING.md), so that the phase is hit
exactly; those of the second part act from outside (signals, proxies on the control links, clients that
leave) and wait until the phase is seen."""
import asyncio
import signal
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import Callable

from client import Abort
from proxy import DOWN, UP

P, D, R, C = "prefill", "decode", "router", "client"
STALL = 1.0  # stall_ms of the chaos cluster, in seconds


@dataclass
class Row:
    fault: str
    where: str  # P, D, R or C, and the link of it
    phase: str
    run: Callable
    allowed: tuple = ("whole",)  # kinds of outcomes besides exact answers
    needs: dict = None           # what the requests of the batch must have

    @property
    def name(self):
        return f"{self.fault} {self.where} at {self.phase}"


# ---- faults that the programs commit themselves ----

async def hook(c, who, action, point, nth=(1, 1), every=0):
    """One worker commits the action at the n-th hit of the point."""
    victim = c.victim(who)
    n = c.rng.randint(*nth)
    c.note(f"{victim} {point}@{n}")
    c.rig.arm(f"{victim}/{point}@{n}{f'+{every}' if every else ''}={action}")
    batch = c.start()
    if not await c.until(lambda: c.rig.fired(victim), batch):
        await batch
        return
    if action in ("kill", "exit"):
        await c.dead(victim)
    elif action == "stop":
        await c.stopped(victim)
    c.rig.disarm()
    if action == "stop":
        await asyncio.sleep(c.rng.choice([0.1, 1.6, 2.2]) * STALL)
        c.rig.signal(victim, signal.SIGCONT)
    elif action == "kill" and c.rng.random() < 0.5:
        await c.restart(victim)  # while the others go on
    await batch


async def hooks(c, *entries):
    """Entries that are armed on every worker of a role, or on one: "prefill:POINT=ACTION" names any
    one, "prefill*:…" all of them."""
    armed, watched = [], []
    for e in entries:
        who, what = e.split(":", 1)
        names = c.workers(who.rstrip("*"))
        names = names if who.endswith("*") else [c.rng.choice(names)]
        armed += [f"{n}/{what}" for n in names]
        watched.append(names)
    c.note(" ".join(armed)[:60])
    c.rig.arm(*armed)
    batch = c.start()
    done = await c.until(lambda: all(any(c.rig.fired(n) for n in names) for names in watched), batch)
    killed = [a.split("/")[0] for a in armed if a.endswith("=kill")]
    c.killed.update(killed)
    if done and killed:
        for name in killed:
            await c.dead(name)
        c.rig.disarm()
    await batch


# ---- faults from outside ----

SLOW_PREFILL = "prefill*:prefill.layer@1+1=delay:4"
SLOW_DECODE = "decode*:engine.step@1+1=delay:3"


def _slowed(c, phase):
    """Workers take their time, so that the phase can be seen from outside."""
    what = SLOW_PREFILL if phase == "prefill" else SLOW_DECODE
    who, point = what.split("*:")
    c.rig.arm(*[f"{n}/{point}" for n in c.workers(who)])


async def _in_phase(c, phase, batch, victim=None):
    """Waits until requests are in the phase, on the victim if there is one."""
    if phase == "queued":
        return True
    if phase == "prefill":
        return await c.until(lambda: c.computing(victim), batch)
    k = c.rng.randint(5, 60)
    return await c.until(lambda: c.tokens_seen >= k and c.decoding(victim), batch)


async def outside(c, who, phase, act):
    victim = c.victim(who)
    _slowed(c, phase)
    batch = c.start()
    if await _in_phase(c, phase, batch, victim if who in (P, D) else None):
        c.note(victim)
        c.hit = True
        await act(c, victim)
    c.rig.disarm()
    await batch


async def act_kill(c, victim):
    c.rig.signal(victim, signal.SIGKILL)
    await c.dead(victim)
    if c.rng.random() < 0.5:
        await c.restart(victim)


async def act_kill_twice(c, victim):
    """Dies again as soon as it is back."""
    for _ in range(2):
        c.rig.signal(victim, signal.SIGKILL)
        await c.dead(victim)
        await c.restart(victim)


async def act_stop(c, victim):
    c.rig.signal(victim, signal.SIGSTOP)
    await asyncio.sleep(c.rng.choice([0.2, 0.5, 1.6]) * STALL)
    c.rig.signal(victim, signal.SIGCONT)


async def act_term(c, victim):
    c.rig.signal(victim, signal.SIGTERM)
    c.rig.disarm()  # at full speed again
    await c.dead(victim, 30)


async def act_restart_router(c, victim):
    c.rig.signal(victim, signal.SIGKILL)
    await c.dead(victim)
    c.rig.disarm()
    await c.restart(victim)


async def act_kill_all(c, victim):
    """All workers of the victim's kind; they come back soon."""
    names = [n for n in c.rig.workers if n.startswith(victim[:-2])]
    for name in names:
        c.rig.signal(name, signal.SIGKILL)
    c.rig.disarm()
    for name in names:
        await c.dead(name)
    for name in names:
        await c.restart(name)


async def act_swizzle(c, victim):
    """The links fall silent one by one, and come back in another order."""
    names = list(c.rig.workers)
    for order, what in ((names, ("hold", UP, DOWN)), (c.rng.sample(names, len(names)), ("heal",))):
        for name in order:
            c.rig.proxies.do(name, *what)
            await asyncio.sleep(c.rng.uniform(0.02, 0.5) * STALL)


# ---- sequences on the move from one decode worker to another, or with a replica there ----

def _drain(c, name, on):
    req = urllib.request.Request(f"{c.rig.admin}/admin/workers/{name}/drain",
                                 method="POST" if on else "DELETE")
    try:
        urllib.request.urlopen(req, timeout=5).close()
    except OSError:
        assert not on, "the router does not drain it"  # who is dead drains no more


async def moving(c, end, action, point, nth=1):
    """A decode worker is drained; the fault hits it ("from") or the other one ("to") on the way."""
    source = c.rng.choice(c.workers(D))
    target = next(n for n in c.workers(D) if n != source)
    victim = source if end == "from" else target
    slow = [f"{n}/engine.step@1+1=delay:6" for n in c.workers(D)]
    c.note(f"{source} to {target}, {victim} {point}@{nth}")
    c.rig.arm(*slow)
    batch = c.start()
    began = await c.until(lambda: c.tokens_seen > 20 and c.decoding(source), batch)
    c.hit = False
    try:
        if began:
            c.rig.arm(*slow, f"{victim}/{point}@{nth}={action}")
            await asyncio.to_thread(_drain, c, source, True)
            await _on_the_way(c, victim, action, point, batch)
        c.rig.disarm()
        await batch
    finally:
        await asyncio.to_thread(_drain, c, source, False)


async def copying(c, end, action, point, nth=1):
    """Running sequences have replicas; the fault hits a worker that copies ("from"), the other one
    ("to"), or one that has been copied ("copied")."""
    source = c.rng.choice(c.workers(D))
    other = next(n for n in c.workers(D) if n != source)
    victim = other if end == "to" else source
    slow = [f"{n}/engine.step@1+1=delay:6" for n in c.workers(D)]
    c.note(f"{source} to {other}, {victim} {point}@{nth}")
    c.rig.arm(*slow)
    await asyncio.to_thread(c.rig.reset, replicas=1)
    batch = c.start()
    try:
        began = await c.until(lambda: c.tokens_seen > 20 and c.decoding(source), batch)
        if began and end == "copied":
            began = await c.until(lambda: c.rig.sum("baton_replica_blocks", f'worker="{source}"') > 0, batch)
        c.hit = False
        if began:
            c.rig.arm(*slow, f"{victim}/{point}@{nth}={action}")
            await _on_the_way(c, victim, action, point, batch)
        c.rig.disarm()
        await batch
    finally:
        await asyncio.to_thread(c.rig.reset, replicas=0)


async def _on_the_way(c, victim, action, point, batch):
    def fired():
        return c.rig.lines(victim, f" fault: {point} hit", c.rig.marks[victim])

    if not await c.until(fired, batch):
        return
    if action == "kill":
        await c.dead(victim)
        c.rig.disarm()
        await c.restart(victim)
    elif action == "stop":
        await c.stopped(victim)
        c.rig.disarm()
        await asyncio.sleep(c.rng.choice([0.1, 1.6, 2.2]) * STALL)
        c.rig.signal(victim, signal.SIGCONT)


def link(what, *args, seconds=0.0):
    async def act(c, victim):
        c.rig.proxies.do(victim, what, *args)
        if seconds:
            await asyncio.sleep(seconds * STALL * c.rng.uniform(0.5, 1.0))
            c.rig.proxies.do(victim, "heal")
    return act


async def leave(c, phase):
    """Half of the clients go away in this phase; the others must not notice."""
    _slowed(c, phase)

    def impatient(out):
        if phase == "decode" and out.events >= c.rng.randint(2, 20):
            raise Abort

    batch = c.start(n=10, leavers=5, on_event=impatient)
    if phase != "decode":
        await _in_phase(c, phase, batch)
        c.abort_leavers()
    c.hit = True
    c.rig.disarm()
    await batch


def _rows():
    rows = []

    def add(fault, where, phase, run, **kw):
        rows.append(Row(fault, where, phase, run, **kw))

    long_prompt, long_answer = {"prompt": 200}, {"tokens": 80}
    # SIGKILL and SIGSTOP exactly at a point: name of the phase, role, point, which hit, what it needs.
    points = [
        ("queued", P, "PREFILL.received", (1, 3), None),
        ("job started", P, "prefill.start", (1, 3), None),
        ("layer of a chunk", P, "prefill.layer", (2, 20), long_prompt),
        ("chunk done", P, "prefill.chunk", (1, 6), long_prompt),
        ("RESERVE sent", P, "RESERVE.sent", (1, 3), None),
        ("GRANT received", P, "GRANT.received", (1, 3), None),
        ("KV in flight", P, "kv.sent", (1, 12), long_prompt),
        ("first token", P, "token.first", (1, 3), None),
        ("HANDOFF sent", P, "HANDOFF.sent", (1, 3), long_answer),
        ("HANDOFF_OK received", P, "HANDOFF_OK.received", (1, 3), long_answer),
        ("RESERVE received", D, "RESERVE.received", (1, 3), long_answer),
        ("GRANT sent", D, "GRANT.sent", (1, 3), long_answer),
        ("KV in flight", D, "kv.received", (1, 12), dict(long_prompt, tokens=15)),
        ("HANDOFF received", D, "HANDOFF.received", (1, 3), long_answer),
        ("HANDOFF_OK sent", D, "HANDOFF_OK.sent", (1, 3), long_answer),
        ("decoding", D, "decode.token", (1, 200), long_answer),
        ("tokens sent", D, "TOKENS.sent", (1, 60), long_answer),
        ("last token", D, "token.last", (1, 2), long_answer),
    ]
    for phase, who, point, nth, needs in points:
        add("SIGKILL", who, phase, partial(hook, who=who, action="kill", point=point, nth=nth), needs=needs)
        if phase not in ("job started", "chunk done", "GRANT sent", "HANDOFF_OK sent", "RESERVE sent"):
            add("SIGSTOP", who, phase, partial(hook, who=who, action="stop", point=point, nth=nth),
                needs=needs)
    # Messages between workers that vanish: only time-outs bring them back.
    for who, message in [(P, "RESERVE"), (D, "GRANT"), (P, "HANDOFF"), (D, "HANDOFF_OK")]:
        add("message lost", who, f"{message} sent",
            partial(hook, who=who, action="drop", point=f"{message}.sent", nth=(1, 3)), needs=long_answer)
    for who in (P, D):
        add("message damaged", who, "data link",
            partial(hook, who=who, action="corrupt", point="message.sent", nth=(1, 4)), needs=long_answer)
        add("frame damaged", who, "control link",
            partial(hook, who=who, action="corrupt", point="frame.sent",
                    nth=(1, 6 if who == P else 60)), needs=long_answer)
        add("engine hangs", who, "a step",
            partial(hook, who=who, action=f"delay:{int(2200 * STALL)}", point="engine.step", nth=(2, 9)))
        add("engine fails", who, "a step",
            partial(hook, who=who, action="fail", point="engine.step", nth=(1, 9)))
    add("bit flip in KV", P, "KV in flight",
        partial(hook, who=P, action="corrupt", point="kv.sent", nth=(1, 6)), needs=dict(long_prompt, tokens=15))
    add("many bit flips", P, "KV in flight",
        partial(hook, who=P, action="corrupt", point="kv.sent", every=5), needs=dict(long_prompt, tokens=15))
    add("full", D, "RESERVE received",
        partial(hook, who=D, action="refuse", point="reserve", nth=(1, 3)), needs=long_answer)
    add("slow", P, "every layer", lambda c: hooks(c, "prefill:prefill.layer@1+1=delay:15"),
        needs=long_prompt)
    add("slow", D, "every step", lambda c: hooks(c, "decode:engine.step@1+1=delay:8"), needs=long_answer)
    add("slow", D, "KV in flight", lambda c: hooks(c, "decode:kv.received@1+1=delay:15"),
        needs=dict(long_prompt, tokens=15))
    for end, phase, point in [
        ("from", "begun", "move.start"),
        ("from", "KV in flight", "kv.sent"),
        ("from", "frozen", "move.frozen"),
        ("from", "HANDOFF sent", "HANDOFF.sent"),
        ("from", "HANDOFF_OK received", "HANDOFF_OK.received"),
        ("to", "RESERVE received", "RESERVE.received"),
        ("to", "KV in flight", "kv.received"),
        ("to", "HANDOFF received", "HANDOFF.received"),
        ("to", "HANDOFF_OK sent", "HANDOFF_OK.sent"),
    ]:
        for fault, action in [("SIGKILL", "kill"), ("SIGSTOP", "stop")]:
            if action == "kill" or phase not in ("begun", "RESERVE received"):
                add(fault, f"decode {end}", f"moving, {phase}",
                    partial(moving, end=end, action=action, point=point), needs=long_answer)
    for end, message in [("from", "RESERVE"), ("to", "GRANT"), ("from", "HANDOFF"), ("to", "HANDOFF_OK")]:
        add("message lost", f"decode {end}", f"moving, {message} sent",
            partial(moving, end=end, action="drop", point=f"{message}.sent"), needs=long_answer)
    add("bit flip in KV", "decode from", "moving, KV in flight",
        partial(moving, end="from", action="corrupt", point="kv.sent"), needs=long_answer)
    for end, phase, point in [
        ("from", "begun", "replica.start"),
        ("from", "KV in flight", "kv.sent"),
        ("from", "HANDOFF sent", "HANDOFF.sent"),
        ("to", "RESERVE received", "RESERVE.received"),
        ("to", "KV in flight", "kv.received"),
        ("to", "HANDOFF received", "HANDOFF.received"),
        ("to", "HANDOFF_OK sent", "HANDOFF_OK.sent"),
        ("copied", "decoding", "decode.token"),
    ]:
        for fault, action in [("SIGKILL", "kill"), ("SIGSTOP", "stop")]:
            if action == "kill" or phase in ("KV in flight", "decoding"):
                add(fault, f"decode {end}", f"copying, {phase}",
                    partial(copying, end=end, action=action, point=point), needs=long_answer)
    for end, message in [("from", "RESERVE"), ("to", "GRANT"), ("from", "HANDOFF"), ("to", "HANDOFF_OK")]:
        add("message lost", f"decode {end}", f"copying, {message} sent",
            partial(copying, end=end, action="drop", point=f"{message}.sent"), needs=long_answer)
    add("bit flip in KV", "decode from", "copying, KV in flight",
        partial(copying, end="from", action="corrupt", point="kv.sent"), needs=long_answer)
    # Two at once.
    add("SIGKILL twice", "prefill+decode", "KV in flight",
        lambda c: hooks(c, "prefill:kv.sent@4=kill", "decode:kv.received@6=kill"),
        needs=dict(long_prompt, tokens=15), allowed=("whole", "error 500", "error event"))
    add("SIGKILL twice", "prefill+decode", "decoding",
        lambda c: hooks(c, "prefill:token.first@2=kill", "decode:decode.token@30=kill"),
        needs=long_answer, allowed=("whole", "error 500", "error event"))
    # From outside.
    for who in (P, D):
        phases = ("prefill", "decode") if who == D else ("prefill",)
        for phase in phases + ("queued",):
            add("SIGKILL any time", who, phase, partial(outside, who=who, phase=phase, act=act_kill))
        add("killed twice", who, phases[-1], partial(outside, who=who, phase=phases[-1], act=act_kill_twice),
            allowed=("whole", "error 500", "error event"))
        add("all killed", who, phases[-1], partial(outside, who=who, phase=phases[-1], act=act_kill_all))
        add("SIGTERM", who, phases[-1], partial(outside, who=who, phase=phases[-1], act=act_term))
        for phase in phases:
            for fault, act in [
                ("link cut", link("cut")),
                ("link reset", link("reset")),
                ("link refused", link("refuse", seconds=1.2)),
                ("link silent", link("hold", UP, DOWN, seconds=2.4)),
                ("link silent for a moment", link("hold", UP, DOWN, seconds=0.4)),
                ("link one-way", link("hold", UP, seconds=2.4)),
                ("link one-way back", link("hold", DOWN, seconds=2.4)),
                ("link slow", link("slow", 0.1, seconds=2.0)),
                ("link flips a bit", link("corrupt", DOWN)),
                ("frames twice", link("repeat", UP, DOWN)),
            ]:
                add(fault, f"router-{who}", phase, partial(outside, who=who, phase=phase, act=act))
    for phase in ("prefill", "decode"):
        add("links swizzled", "router-all", phase, partial(outside, who=R, phase=phase, act=act_swizzle))
    for phase in ("queued", "prefill", "decode"):
        add("client leaves", C, phase, partial(leave, phase=phase), allowed=("whole", "aborted"))
    for phase in ("prefill", "decode"):
        add("SIGSTOP", R, phase, partial(outside, who=R, phase=phase, act=act_stop))
        add("SIGKILL", R, phase, partial(outside, who=R, phase=phase, act=act_restart_router),
            allowed=("whole", "cut"))
    return rows


ROWS = _rows()
