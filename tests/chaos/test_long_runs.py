"""Answers of 50,000 tokens, and the decode worker dies at 40,000: a model with room for 65,536 positions,
two layers, random weights, written here by hand. make check runs a short version."""
import asyncio
import json
import random
import re
import shutil
import signal
import struct
import time
import urllib.request
from pathlib import Path

import pytest

from client import ask
from notes import note
from rig import SLOW, Rig

from conftest import TINY

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
          "vocab_size": 301, "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
          "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 2,
          "torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False}


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def tensors(c, rng):
    """Name, shape, values: unit gain, so that the layers matter as much as the embedding."""
    h, f, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d

    def noise(rows, columns, gain):
        return (rows, columns), [rng.gauss(0, gain) for _ in range(rows * columns)]

    def norm(n):
        return (n,), [1 + rng.gauss(0, 0.15) for _ in range(n)]

    yield "model.embed_tokens.weight", *noise(c["vocab_size"], h, 0.3)
    yield "model.norm.weight", (h,), [2.0] * h
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", *norm(h)
        yield p + "post_attention_layernorm.weight", *norm(h)
        for name, rows, columns in [("self_attn.q_proj", q, h), ("self_attn.k_proj", kv, h),
                                    ("self_attn.v_proj", kv, h), ("self_attn.o_proj", h, q),
                                    ("mlp.gate_proj", f, h), ("mlp.up_proj", f, h), ("mlp.down_proj", h, f)]:
            yield f"{p}{name}.weight", *noise(rows, columns, 1.2 / columns ** 0.5)


def write_model(out):
    """A Hugging Face directory with the tokenizer of the tiny Llama."""
    out.mkdir()
    rng, header, data = random.Random(1), {}, bytearray()
    for name, shape, values in tensors(CONFIG, rng):
        begin = len(data)
        data += struct.pack(f"<{len(values)}H", *map(bf16, values))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (out / "config.json").write_text(json.dumps(CONFIG))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / "llama" / name, out)
    return out


def rss(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1)) << 10


@pytest.mark.parametrize("streams, tokens, at", [
    (4, 1500, 1000),
    pytest.param(8, 50000, 40000, marks=pytest.mark.long)])
def test_long_answers_survive(tmp_path, streams, tokens, at):
    model = write_model(tmp_path / "long")
    r = Rig("--threads", "1", model=model, prefill=1, decode=2,
            sets=["max_batch=16", f"kv_blocks={streams * (tokens // 16 + 8)}", "prefix_cache=off",
                  "sse_keepalive_ms=1000"])
    bodies = [{"prompt": [5 + k, 9, 40 + k], "max_tokens": tokens, "temperature": 1.0, "seed": 100 + k,
               "stream": True, "ignore_eos": True, "return_token_ids": True} for k in range(streams)]
    memory = []

    async def run(kill):
        counts, killed = [0] * streams, []

        def count(k):
            def on_event(out):
                counts[k] += 1
                if counts[k] % 1000 == 0:
                    memory.append(rss(r.pid("routerd")))
                if kill and not killed and min(counts) >= at:
                    killed.extend(n for n in ("decoded-1", "decoded-2") if r.signal(n, 0) and busy(r, n))
                    r.signal(killed[0], signal.SIGKILL)
            return on_event

        begin = time.monotonic()
        outs = await asyncio.gather(*[ask(r.port, b, count(k), timeout=7200 * SLOW) for k, b in enumerate(bodies)])
        return outs, killed, time.monotonic() - begin

    try:
        r.start()
        whole, _, alone = asyncio.run(run(False))
        r.settle()
        if tokens < 10000:  # or the worker would be done before the client has read this far
            r.arm("decoded-1/engine.step@1+1=delay:3", "decoded-2/engine.step@1+1=delay:3")
        outs, killed, seconds = asyncio.run(run(True))
        assert killed
        for k, (a, b) in enumerate(zip(whole, outs)):
            assert a.whole() and b.whole(), (k, a.kind(), b.kind(), b.error or b.cut)
            assert len(b.ids) == tokens and b.answer() == a.answer(), k
        assert r.sum("baton_divergence_total") == 0
        gap = max(o.gap for o in outs)
        comments = sum(o.comments for o in outs)
        assert gap < 2 or comments > 0, "a silent stream gets comments"
        quarter = memory[: len(memory) // 4] or memory
        note(f"{streams} streams of {tokens} tokens: {alone:.0f} s undisturbed, {seconds:.0f} s with {killed[0]} "
             f"killed at {at}; longest silence {gap:.1f} s, {comments} comments; router {min(memory) >> 20} to "
             f"{max(memory) >> 20} MiB")
        assert max(memory) < max(quarter) + (64 << 20), "the router's memory is bounded"
        r.restart(killed[0])
        r.wait_linked()
        r.settle()
    finally:
        r.stop()


def busy(r, name):
    with urllib.request.urlopen(f"http://{r.http[name]}/debug/requests", timeout=5) as p:
        return bool(json.loads(p.read())["tickets"])
