#!/usr/bin/env python3
"""RoPE scalings and K-quants, as transformers and the gguf package compute them. Run by hand, like
make_tiny_models.py (see README.md beside this file; also needs gguf==0.19.0).

    make_scaled_models.py tests     writes tests/model/rope_vectors.h, tests/data/tiny/scaled.expect.json,
                                    tests/data/tiny/llama-k.gguf and llama-k.expect.json
"""
import copy
import json
import pathlib
import shutil
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import make_tiny_models as tiny

THETA = {"rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, **THETA}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **THETA}
# Patches of the tiny llama's config.json.
PATCHES = {
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}},
    "linear_old": {"rope_parameters": None, **THETA,
                   "rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "yarn_bounds": {"rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0,
                                        "attention_factor": 1.25, "truncate": False}},
    "yarn_mscale": {"rope_parameters": {**YARN, "factor": 32.0, "mscale": 0.707, "mscale_all_dim": 1.0}},
    "yarn_ratio": {"max_position_embeddings": 2048,
                   "rope_parameters": {**YARN, "factor": None, "original_max_position_embeddings": 512}},
}


def patched(source, patch):
    c = json.loads((source / "config.json").read_text())
    for k, v in copy.deepcopy(patch).items():
        c[k] = v
    return c


def rope_header(source):
    yield ("/* Made by tests/tools/make_scaled_models.py: do not edit. The tiny llama's config.json with a\n"
           " * patch, and what transformers makes of its RoPE. */")
    yield "#ifndef BATON_TESTS_MODEL_ROPE_VECTORS_H\n#define BATON_TESTS_MODEL_ROPE_VECTORS_H\n"
    yield "static const struct {\n    const char *name, *patch;\n    double magnitude, freqs[16];\n} rope_vectors[] = {"
    for name, patch in PATCHES.items():
        config = transformers.LlamaConfig.from_dict(patched(source, patch))
        freqs, magnitude = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, "cpu")
        text = json.dumps(patch, separators=(",", ":")).replace('"', '\\"')
        yield f'    {{"{name}",\n     "{text}",\n     {magnitude!r},\n     {{'
        yield "      " + ", ".join(repr(float(f)) for f in freqs) + "}},"
    yield "};\n\n#endif"


def scaled(source):
    """One short and one longer sequence for three of the patches."""
    rng = np.random.default_rng(11)
    out = []
    for name in ("linear", "llama3", "yarn"):
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d)
            for f in source.iterdir():
                shutil.copy(f, d)
            (d / "config.json").write_text(json.dumps(patched(source, PATCHES[name])))
            model = transformers.LlamaForCausalLM.from_pretrained(
                d, dtype=torch.float32, attn_implementation="eager").eval()
        sequences = []
        for n in (20, 150):
            ids = rng.integers(0, 301, n).tolist()
            first = max(0, n - 6)
            z = tiny.logits(model, ids)[first:]
            order = np.argsort(-z, axis=1, kind="stable")[:, :12]
            peak = z.max(axis=1)
            sequences.append({
                "ids": ids, "first": first,
                "lse": [round(float(v), 5) for v in peak + np.log(np.exp(z.T - peak).sum(axis=0))],
                "top_ids": order.tolist(),
                "top_logits": [[round(float(z[i, j]), 5) for j in row] for i, row in enumerate(order)]})
        out.append({"name": name, "patch": PATCHES[name], "sequences": sequences})
    return out


# ---- K-quants ------------------------------------------------------------------------------------

KINDS = {"token_embd": "Q6_K", "attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q6_K",
         "attn_output": "Q5_0", "ffn_gate": "Q4_K", "ffn_up": "Q5_1", "ffn_down": "Q6_K"}
rng = np.random.default_rng(3)


def k_scales(n):
    """n x 12 bytes in which the minima are the scales, 32 to 63."""
    s = rng.integers(32, 64, (n, 8), dtype=np.uint8)
    low, high = s[:, :4], s[:, 4:]
    a = low | (high >> 4) << 6
    return np.concatenate([a, a, (high & 15) | (high & 15) << 4], axis=1)


def random_blocks(shape, kind, gain):
    """Random integers under scales that give numbers of that deviation: (bytes, their values)."""
    if kind == "F32":
        raise ValueError
    qt = gguf.GGMLQuantizationType[kind]
    elems, size = gguf.GGML_QUANT_SIZES[qt]
    n = int(np.prod(shape)) // elems
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)

    def half(x):
        return (x * rng.uniform(0.8, 1.2, n)).astype("<f2")

    def put(at, h):
        blocks[:, at:at + 2] = h.view(np.uint8).reshape(n, 2)
    if kind in ("Q4_K", "Q5_K"):
        mean, deviation = (7.5, 4.6) if kind == "Q4_K" else (15.5, 9.2)
        blocks[:, 4:16] = k_scales(n)
        d = half(gain / (47 * deviation))
        put(0, d)
        put(2, (d.astype(np.float32) * mean).astype("<f2"))
    elif kind == "Q6_K":
        blocks[:, 192:208] = rng.integers(40, 128, (n, 16), dtype=np.uint8)
        put(208, half(gain / (80 * 18)))
    else:
        d = half(gain / 9.2)
        put(0, d)
        if kind == "Q5_1":
            put(2, (d.astype(np.float32) * -15.5).astype("<f2"))
    value = gguf.quants.dequantize(blocks.reshape(shape[0], -1), qt).reshape(shape)
    return blocks.tobytes(), value.astype(np.float32)


def k_quants(out):
    rope = {**LLAMA3, "factor": 4.0}
    config = transformers.LlamaConfig(
        vocab_size=301, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-5,
        max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=0, eos_token_id=2,
        rope_parameters=dict(rope), attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).eval().float()
    tiny.fill(model, torch.Generator().manual_seed(21), 1.25)
    freqs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1 / (10000.0 ** (np.arange(0, 64, 2) / 64))
    divisors = (plain / freqs.double().numpy()).astype("<f4")
    quantise, write = tiny.quantise, tiny.write_gguf
    tiny.TYPES.update({k: int(gguf.GGMLQuantizationType[k]) for k in set(KINDS.values())})
    tiny.quantise = lambda x, kind: (quantise(x, kind) if kind == "F32" else random_blocks(
        x.shape, kind, 0.3 if x.shape[0] == 301 else 1.2 / x.shape[1] ** 0.5))
    tiny.write_gguf = lambda path, version, keys, tensors: write(
        path, version, keys, tensors + [("rope_freqs.weight", (32,), "F32", divisors.tobytes())])
    tok = tiny.make_tokenizer(301, "llama3")
    tiny.export_gguf(out / "llama-k.gguf", 3, "llama", model, tok, "llama-bpe",
                     lambda n: next(v for k, v in KINDS.items() if f"{k}." in n))
    e = tiny.expectations("llama-k", model, 301, 301, (17, 150), 16, 2)
    tiny.write_json(out / "llama-k.expect.json", e)


def main():
    tests = pathlib.Path(sys.argv[1])
    data = tests / "data" / "tiny"
    torch.set_num_threads(1)
    (tests / "model" / "rope_vectors.h").write_text("\n".join(rope_header(data / "llama")) + "\n")
    tiny.write_json(data / "scaled.expect.json", {"models": scaled(data / "llama")})
    k_quants(data)


if __name__ == "__main__":
    main()
