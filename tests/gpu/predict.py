#!/usr/bin/env python3
"""What a step should cost on a GPU: bytes, arithmetic and time, by the formulas of docs/CUDA.md.

    predict.py                  the tables of docs/CUDA.md
    predict.py --check FILE     exit 1 when FILE does not hold them
    predict.py --write FILE     put them there, between the two marks

Times are of a roofline: what must be read or computed at the speed that is reached in practice, plus
a gap for each node of the graph. They say what to aim at, not what was measured.
"""
import sys
from dataclasses import dataclass

BEGIN, END = "<!-- predict.py begins -->", "<!-- predict.py ends -->"


@dataclass
class Model:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    def layer_params(self):
        d, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        return 2 * d * q + 2 * d * kv + 3 * d * self.ffn

    def params(self):  # that a decode step reads: all but the embedding table
        return self.layers * self.layer_params() + self.hidden * self.vocab

    def kv_bytes(self):  # of one token
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    def attention_flops(self):  # of one query token over one position, all layers
        return 4 * self.heads * self.head_dim * self.layers


@dataclass
class Device:
    name: str
    read: float  # bytes/s, reached: 0.9 of the peak, as an H200 was measured (4.3 of 4.8 TB/s)
    gemm: float  # FLOP/s of large bf16 products, reached
    attention: float  # FLOP/s of prefill attention: mma.sync, no wgmma
    memory: float  # bytes for weights, buffers and KV


MODELS = [Model("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256),
          Model("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936)]
DEVICES = [Device("H100 SXM", 0.9 * 3.35e12, 790e12, 350e12, 0.92 * 80 * 2**30),
           Device("H200", 0.9 * 4.8e12, 790e12, 350e12, 0.92 * 139 * 2**30),
           Device("B200", 0.9 * 8.0e12, 1700e12, 700e12, 0.92 * 178 * 2**30)]
BATCHES, CONTEXTS = (1, 16, 64), (2048, 8192, 32768)
PROMPTS = (512, 2048, 8192, 32768)
NODES = 5  # of a layer, in a decode step of up to 64 rows
TAIL = 3  # begin (tables, rows, embedding), logits, sampling
GAP = 1.3e-6  # between two nodes of a graph; with programmatic dependent launch much of it is hidden


def decode_bytes(m, batch, context):
    return 2 * m.params() + batch * context * m.kv_bytes()


def decode_flops(m, batch, context):
    return batch * (2 * m.params() + context * m.attention_flops())


def nodes(m):
    return NODES * m.layers + TAIL


def decode_time(m, d, batch, context):
    linear = max(2 * m.params() / d.read, 2 * m.params() * batch / d.gemm)
    attention = max(batch * context * m.kv_bytes() / d.read,
                    batch * context * m.attention_flops() / d.attention)
    return linear + attention + nodes(m) * GAP


def prefill_time(m, d, n):
    return (2 * n * m.layers * m.layer_params() / d.gemm +
            2 * m.heads * m.head_dim * m.layers * n * n / d.attention)


def fits(m, d, batch, context):
    return decode_bytes(m, batch, context) + 2 * m.hidden * m.vocab <= d.memory


def kilo(n):
    return f"{n // 1024}k" if n >= 1024 else str(n)


def tables():
    out = []
    for m in MODELS:
        out += [f"**{m.name}**: {m.params() / 1e9:.2f} G parameters read by a step, {2 * m.params() / 1e9:.2f} GB "
                f"in bf16; {m.kv_bytes() // 1024} KiB of KV per token; {nodes(m)} nodes, {nodes(m) * GAP * 1e3:.2f} "
                "ms of gaps.", ""]
        out += ["| batch | context | read, GB | GFLOP | " + " | ".join(f"{d.name}, ms" for d in DEVICES) + " | " +
                " | ".join(f"{d.name}, tok/s" for d in DEVICES) + " |",
                "|" + "---|" * (4 + 2 * len(DEVICES))]
        for b in BATCHES:
            for c in CONTEXTS:
                ms = [f"{decode_time(m, d, b, c) * 1e3:.2f}" if fits(m, d, b, c) else "-" for d in DEVICES]
                rate = [f"{b / decode_time(m, d, b, c):.0f}" if fits(m, d, b, c) else "-" for d in DEVICES]
                out.append(f"| {b} | {kilo(c)} | {decode_bytes(m, b, c) / 1e9:.1f} | "
                           f"{decode_flops(m, b, c) / 1e9:.0f} | " + " | ".join(ms + rate) + " |")
        out += ["", "| prompt | TFLOP | " + " | ".join(f"{d.name}, ms" for d in DEVICES) + " |",
                "|" + "---|" * (2 + len(DEVICES))]
        for n in PROMPTS:
            flops = 2 * n * m.layers * m.layer_params() + 2 * m.heads * m.head_dim * m.layers * n * n
            out.append(f"| {kilo(n)} | {flops / 1e12:.1f} | " +
                       " | ".join(f"{prefill_time(m, d, n) * 1e3:.1f}" for d in DEVICES) + " |")
        out.append("")
    return "\n".join(out)


def main():
    if len(sys.argv) == 1:
        print(tables())
        return 0
    mode, path = sys.argv[1:]
    text = open(path).read()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    want = f"{head}{BEGIN}\n{tables()}\n{END}{tail}"
    if mode == "--write":
        open(path, "w").write(want)
    elif text != want:
        print(f"{path} does not hold what tests/gpu/predict.py computes: predict.py --write {path}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
