#!/usr/bin/env python3
"""Writes tests/kernels/quant_vectors.h: random blocks of every quantised GGUF type that Baton reads,
and the numbers that the gguf package (an implementation of its own, in numpy) decodes from them.

    python3 -m venv .venv-q && .venv-q/bin/pip install gguf==0.19.0
    .venv-q/bin/python tests/tools/make_quant_vectors.py > tests/kernels/quant_vectors.h
"""
import gguf
import numpy as np

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
N = 256
rng = np.random.default_rng(6)


def lines(words, per, fmt):
    for i in range(0, len(words), per):
        yield "      " + ", ".join(fmt.format(w) for w in words[i:i + per]) + ","


print("/* Made by tests/tools/make_quant_vectors.py: do not edit. bytes: 256 numbers of a type; bits: what\n"
      " * they are as float32, its bit patterns. */")
print("#ifndef BATON_TESTS_KERNELS_QUANT_VECTORS_H\n#define BATON_TESTS_KERNELS_QUANT_VECTORS_H\n")
print('#include "kernels/matrix.h"\n')
print("static const struct {\n    uint32_t type;\n    uint8_t bytes[272];\n    uint32_t bits[256];\n"
      "} quant_vectors[] = {")
for name in TYPES:
    kind = gguf.GGMLQuantizationType[name]
    elems, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (N // elems, size), dtype=np.uint8)
    at = size - 2 if name == "Q6_K" else 0
    for b in blocks:  # scales (and minima) of a sane size
        b[at:at + 2] = np.array([rng.uniform(0.001, 0.1)], dtype="<f2").view(np.uint8)
        if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
            b[2:4] = np.array([rng.uniform(-0.1, 0.1)], dtype="<f2").view(np.uint8)
    values = gguf.quants.dequantize(blocks.reshape(1, -1), kind).astype("<f4").reshape(-1)
    print(f"    {{MATRIX_{name},\n     {{")
    print("\n".join(lines(blocks.reshape(-1), 16, "{}")))
    print("     },\n     {")
    print("\n".join(lines(values.view(np.uint32), 8, "0x{:08x}")))
    print("     }},")
print("};\n\n#endif")
