#!/usr/bin/env python3
"""Makes the tiny random models of tests/data/tiny and what transformers computes with them.

Run by hand (see README.md beside this file); the results are committed. Everything is seeded: the
same versions of torch, transformers and tokenizers give the same files.

    make_tiny_models.py OUT        writes OUT/{llama,qwen2,qwen3}/, OUT/*.gguf, OUT/*.expect.json
"""
import json
import pathlib
import struct
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISIBLE = ["<think>", "</think>"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
            "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"
            "{{ '<|im_start|>assistant\\n' }}{% endif %}")
CORPUS = """The baton is passed from the runner who is done to the runner who is fresh. The prompt is
read once, the answer is written token by token, and the cache that joins the two is the baton. When the
first runner falls the second starts again from the last mark, and then the race goes on and on. There
is no time for the other, there is the line, the hand, the turn, the straight, and in the end the tape.
"""
TEXTS = ["The runner is done.", " two  spaces,\n\nand lines\n", "don't stop: 12345 + 67!",
         "naïve café — 東京 🏃", "<think>the baton</think> is <|im_end|> passed", "\t\x01end  "]
CHAT = [{"role": "system", "content": "You pass the baton."},
        {"role": "user", "content": "Who runs?"}]


def make_tokenizer(n_tokens, style):
    """Byte-level BPE of exactly n_tokens ids: special ones first, then bytes, then merges."""
    tok = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style == "smollm")
    if style == "smollm":
        parts = [pre_tokenizers.Digits(individual_digits=True), byte_level]
    else:
        regex = Regex(LLAMA3 if style == "llama3" else QWEN2)
        parts = [pre_tokenizers.Split(regex, "isolated", invert=False), byte_level]
    tok.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if style == "qwen2":
        tok.normalizer = normalizers.NFC()
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens - len(VISIBLE), special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator([CORPUS], trainer)
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in VISIBLE])
    assert tok.get_vocab_size() == n_tokens, tok.get_vocab_size()
    return tok


def fill(model, rng, out_gain):
    """Weights of unit gain, so that layers matter as much as the embedding; all are BF16 numbers."""
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=rng)
        if name.endswith("bias"):
            p.data = noise * 0.4
        elif name == "model.norm.weight":
            p.data = out_gain * (1 + 0.15 * noise)
        elif "norm" in name:
            p.data = 1 + 0.15 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            p.data = noise * 0.3
        else:
            p.data = noise * (1.2 / p.shape[1] ** 0.5)
        p.data = p.data.to(torch.bfloat16).to(torch.float32)


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def expectations(name, model, vocab, n_tokens, lengths, top, n_prompts):
    """What tests/data/tiny/README.md describes."""
    rng = np.random.default_rng(7)
    out = {"model": name, "vocab": vocab, "sequences": [], "greedy": []}
    for n in lengths:
        ids = rng.integers(0, n_tokens, n).tolist()
        first = 0 if n <= 80 else n - 8
        z = logits(model, ids)[first:]
        order = np.argsort(-z, axis=1, kind="stable")[:, :top]
        peak = z.max(axis=1)
        out["sequences"].append({
            "ids": ids, "first": first,
            "lse": [round(float(v), 5) for v in peak + np.log(np.exp(z.T - peak).sum(axis=0))],
            "top_ids": order.tolist(),
            "top_logits": [[round(float(z[i, j]), 5) for j in row] for i, row in enumerate(order)]})
    for n in (4, 11, 40)[:n_prompts]:
        prompt = rng.integers(5, n_tokens, n).tolist()
        ids, gaps = list(prompt), []
        for _ in range(32):
            z = logits(model, ids)[-1]
            best = np.argsort(-z, kind="stable")[:2]
            ids.append(int(best[0]))
            gaps.append(round(float(z[best[0]] - z[best[1]]), 5))
        out["greedy"].append({"prompt": prompt, "output": ids[n:], "gaps": gaps})
    return out


def write_json(path, data):
    """One line per position or list: small, and still readable in a diff."""
    def flat(x):
        return json.dumps(x, ensure_ascii=True, separators=(",", ":"))

    def block(x, depth):
        pad = "\n" + " " * depth
        if isinstance(x, dict):
            body = ("," + pad + " ").join(f"{flat(k)}: {block(v, depth + 1)}" for k, v in x.items())
            return "{" + pad + " " + body + pad + "}"
        if isinstance(x, list) and x and isinstance(x[0], (list, dict)):
            return "[" + pad + " " + ("," + pad + " ").join(block(v, depth + 1) for v in x) + pad + "]"
        return flat(x)
    path.write_text(block(data, 0) + "\n")


# ---- GGUF ----------------------------------------------------------------------------------------

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}


def quantise(x, kind):
    """float32 array -> (bytes, the float32 values those bytes stand for)."""
    if kind == "F32":
        return x.astype("<f4").tobytes(), x
    if kind == "F16":
        h = x.astype("<f2")
        return h.tobytes(), h.astype(np.float32)
    if kind == "BF16":
        b = torch.from_numpy(x).to(torch.bfloat16)
        return b.view(torch.int16).numpy().astype("<i2").tobytes(), b.float().numpy()
    blocks = x.reshape(-1, 32)
    if kind == "Q8_0":
        d = (np.abs(blocks).max(axis=1) / 127).astype("<f2")
        scale = d.astype(np.float32)[:, None]
        q = np.clip(np.rint(blocks / np.where(scale == 0, 1, scale)), -127, 127).astype(np.int8)
        raw = np.concatenate([d.view(np.uint8).reshape(-1, 2), q.view(np.uint8)], axis=1)
        return raw.tobytes(), (q * scale).astype(np.float32).reshape(x.shape)
    if kind == "Q4_0":
        extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)[:, 0]
        d, m = (extreme / -8).astype("<f2"), None
        scale, low = d.astype(np.float32)[:, None], -8.0 * d.astype(np.float32)[:, None]
    else:
        m = blocks.min(axis=1).astype("<f2")
        d = ((blocks.max(axis=1) - m.astype(np.float32)) / 15).astype("<f2")
        scale, low = d.astype(np.float32)[:, None], m.astype(np.float32)[:, None]
    q = np.clip(np.rint((blocks - low) / np.where(scale == 0, 1, scale)), 0, 15).astype(np.uint8)
    head = [v.view(np.uint8).reshape(-1, 2) for v in ([d] if m is None else [d, m])]
    raw = np.concatenate(head + [q[:, :16] | q[:, 16:] << 4], axis=1)
    return raw.tobytes(), (q * scale + low).astype(np.float32).reshape(x.shape)


def gguf_string(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def gguf_value(kind, v):
    formats = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
    if kind == "str":
        return struct.pack("<I", 8) + gguf_string(v)
    if kind == "strs":
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(gguf_string, v))
    if kind == "i32s":
        return struct.pack("<IIQ", 9, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)
    number, fmt = formats[kind]
    return struct.pack("<I", number) + struct.pack(fmt, v)


def write_gguf(path, version, keys, tensors):
    """keys: [(name, kind, value)]; tensors: [(name, shape, type, bytes)]."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, value in keys:
        head += gguf_string(name) + gguf_value(kind, value)
    data = b""
    for name, shape, kind, raw in tensors:
        data += b"\0" * (-len(data) % 32)
        head += gguf_string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", TYPES[kind], len(data))
        data += raw
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


LAYER = {"input_layernorm.weight": "attn_norm.weight", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm.weight": "ffn_norm.weight",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
             "model.norm.weight": "output_norm.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    for hf, gg in LAYER.items():
        if rest.startswith(hf):
            return f"blk.{layer}.{gg}{rest[len(hf):]}"
    raise KeyError(name)


def to_pairs(x, heads):
    """Rows of q or k from halves (Hugging Face) to neighbouring pairs (GGUF llama)."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def from_pairs(x, heads):
    return x.reshape(heads, x.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)


def export_gguf(path, version, arch, model, tok, pre, choose):
    """Writes the GGUF and loads its dequantised weights back into the model."""
    c = model.config
    vocab = sorted(tok.get_vocab(with_added_tokens=True).items(), key=lambda kv: kv[1])
    merges = json.loads(tok.to_str())["model"]["merges"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    types = [3 if t in SPECIAL else 4 if t in VISIBLE else 1 for t, _ in vocab]
    tokens = [t for t, _ in vocab]
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    keys = [("general.architecture", "str", arch), ("general.name", "str", f"tiny {arch}"),
            (f"{arch}.block_count", "u32", c.num_hidden_layers),
            (f"{arch}.context_length", "u32", c.max_position_embeddings),
            (f"{arch}.embedding_length", "u32", c.hidden_size),
            (f"{arch}.feed_forward_length", "u32", c.intermediate_size),
            (f"{arch}.attention.head_count", "u32", c.num_attention_heads),
            (f"{arch}.attention.head_count_kv", "u32", c.num_key_value_heads),
            (f"{arch}.attention.key_length", "u32", head_dim),
            (f"{arch}.attention.value_length", "u32", head_dim),
            (f"{arch}.attention.layer_norm_rms_epsilon", "f32", c.rms_norm_eps),
            (f"{arch}.rope.dimension_count", "u32", head_dim),
            (f"{arch}.rope.freq_base", "f32", c.rope_parameters["rope_theta"]),
            (f"{arch}.vocab_size", "u32", c.vocab_size),
            ("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.pre", "str", pre),
            ("tokenizer.ggml.tokens", "strs", tokens + [f"[PAD{i}]" for i in range(
                len(tokens), c.vocab_size)]),
            ("tokenizer.ggml.token_type", "i32s", types + [5] * (c.vocab_size - len(tokens))),
            ("tokenizer.ggml.merges", "strs", merges),
            ("tokenizer.ggml.bos_token_id", "u32", 0), ("tokenizer.ggml.eos_token_id", "u32", 2),
            ("tokenizer.ggml.add_bos_token", "bool", False),
            ("tokenizer.chat_template", "str", TEMPLATE)]
    tensors = []
    for name, p in model.named_parameters():
        x = p.detach().numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
        rotated = next((n for k, n in heads.items() if k in name), 0) if arch == "llama" else 0
        if rotated:
            x = to_pairs(x, rotated)
        kind = "F32" if x.ndim == 1 else choose(gguf_name(name))
        raw, value = quantise(np.ascontiguousarray(x, dtype=np.float32), kind)
        tensors.append((gguf_name(name), x.shape, kind, raw))
        p.data = torch.from_numpy(from_pairs(value, rotated) if rotated else value).clone()
    write_gguf(path, version, keys, tensors)


MIXED = {"token_embd": "F16", "attn_q": "Q4_1", "attn_k": "F16", "attn_v": "BF16",
         "attn_output": "F32", "ffn_gate": "Q4_0", "ffn_up": "Q8_0", "ffn_down": "Q4_1"}


def build(out, name, cls, config, n_tokens, style, gain, old_config):
    rng = torch.Generator().manual_seed(20)
    model = cls(config).eval().float()
    fill(model, rng, gain)
    if config.vocab_size > n_tokens:
        model.lm_head.weight.data[n_tokens:] = 0
    tok = make_tokenizer(n_tokens, style)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: p.detach().to(torch.bfloat16).contiguous() for k, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config.save_pretrained(folder)
    path = folder / "config.json"
    c = json.loads(path.read_text())
    c["torch_dtype" if old_config else "dtype"] = "bfloat16"
    c["architectures"] = [cls.__name__]
    if old_config:
        c.pop("dtype", None)
        c["rope_theta"] = c.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(c, indent=2, sort_keys=True) + "\n")
    tok.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "add_prefix_space": False, "bos_token": SPECIAL[0], "chat_template": TEMPLATE,
        "eos_token": SPECIAL[2], "pad_token": SPECIAL[0],
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None}, indent=2) + "\n")
    reloaded = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    e = expectations(name, reloaded, config.vocab_size, n_tokens, (5, 17, 33, 70, 290), 32, 3)
    e["texts"] = [{"text": t, "ids": tok.encode(t, add_special_tokens=False).ids} for t in TEXTS]
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    rendered = fast.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    e["chat"] = {"messages": CHAT, "rendered": rendered,
                 "ids": tok.encode(rendered, add_special_tokens=False).ids}
    write_json(out / f"{name}.expect.json", e)
    return tok


def build_gguf(out, file, version, cls, source, tok, pre, choose, n_tokens):
    model = cls.from_pretrained(out / source, dtype=torch.float32, attn_implementation="eager").eval()
    export_gguf(out / f"{file}.gguf", version, source, model, tok, pre, choose)
    e = expectations(file, model, model.config.vocab_size, n_tokens, (17, 40), 16, 2)
    write_json(out / f"{file}.expect.json", e)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    common = dict(hidden_size=64, num_hidden_layers=2, max_position_embeddings=2048,
                  bos_token_id=0, eos_token_id=2, attn_implementation="eager")
    t = transformers
    llama = build(out, "llama", t.LlamaForCausalLM, t.LlamaConfig(
        vocab_size=301, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **common),
        301, "llama3", 2.5, False)
    qwen2 = build(out, "qwen2", t.Qwen2ForCausalLM, t.Qwen2Config(
        vocab_size=320, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **common),
        290, "qwen2", 2.5, True)
    qwen3 = build(out, "qwen3", t.Qwen3ForCausalLM, t.Qwen3Config(
        vocab_size=307, intermediate_size=128, num_attention_heads=2, num_key_value_heads=1,
        head_dim=64, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **common),
        307, "smollm", 2.5, False)
    for kind in ("Q8_0", "Q4_0", "Q4_1"):
        build_gguf(out, f"llama-{kind.lower()}", 3, t.LlamaForCausalLM, "llama", llama, "llama-bpe",
                   lambda n, k=kind: k, 301)
    build_gguf(out, "llama-mixed", 2, t.LlamaForCausalLM, "llama", llama, "llama-bpe",
               lambda n: next(v for k, v in MIXED.items() if f"{k}." in n), 301)
    build_gguf(out, "qwen2-q8_0", 3, t.Qwen2ForCausalLM, "qwen2", qwen2, "qwen2",
               lambda n: "Q8_0", 290)
    build_gguf(out, "qwen3-q8_0", 3, t.Qwen3ForCausalLM, "qwen3", qwen3, "smollm",
               lambda n: "Q8_0", 307)


if __name__ == "__main__":
    main()
