#!/usr/bin/env python3
"""A test of the kernel tests: plants one fault after another into a copy of a kernel and expects the
test that is named with it to fail.

    mutants.py --build DIR [NAME...]     DIR has the objects of `make test-cuda`

A fault is a piece of the source and what it becomes; the piece must be there exactly once, so that
the list cannot fall behind the kernels. `asan` faults are found by AddressSanitizer alone. Prints a
line for each and "N passed, N failed"."""
import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]

# name, file, test program, its case (and range of cases), the piece, what it becomes, asan
MUTANTS = [
    # ---- linear
    ("linear-barrier", "linear", "linear", "linear_qkv 9-11",
     "    __syncthreads();\n\n    for (uint32_t o = threadIdx.x;", "\n    for (uint32_t o = threadIdx.x;"),
    ("linear-steps", "linear", "linear", "linear_qkv 18-19",
     "(units - warp + WARPS - 1) / WARPS", "(units - warp) / WARPS"),
    ("linear-overrun", "linear", "linear", "linear_qkv 18-18",
     "if (s + DA < n_steps)", "if (s + DA <= n_steps)", True),
    ("linear-bucket", "linear", "linear", "linear_qkv 0-0",
     "token < a.rows && a.live", "a.live", True),
    ("linear-gate-lane", "linear", "linear", "linear_gate_up 0-1",
     "__shfl_xor_sync(FULL, y, 8)", "__shfl_xor_sync(FULL, y, 4)"),
    ("linear-early", "linear", "linear", "linear_qkv 0-0",
     "    grid_wait();\n    grid_launch_next();\n    if (KIND == LINEAR_LOGITS",
     "    uint4 early = load16(a.in + lane_id() * 8);\n    grid_wait();\n"
     "    if (early.x == 0xffffffffu) return;\n    if (KIND == LINEAR_LOGITS"),
    ("linear-warp-order", "linear", "linear", "linear_any_bucket 0-2",
     "part[((size_t)w * TOKENS + i) * LD + r]",
     "part[((size_t)(NT > 1 ? WARPS - 1 - w : w) * TOKENS + i) * LD + r]"),
    # ---- attention of single rows
    ("decode-mask", "attention_decode", "attention", "attention_decode 0-0",
     "if (at + 16 * b + 8 * k + g >= len)", "if (at + 16 * b + 8 * k + g > len)"),
    ("decode-chunk-edge", "attention_decode", "attention", "attention_decode 0-0",
     "c.chunks = (c.len + CHUNK - 1) / CHUNK;", "c.chunks = c.len / CHUNK + 1;"),
    ("decode-stale-values", "attention_decode", "attention", "attention_decode 0-0",
     "if (!whole) {", "if (false) {"),
    ("decode-barrier-heads", "attention_decode", "attention", "attention_decode 0-0",
     "    __syncthreads(); /* the heads and the row's own key and value are there */\n", ""),
    ("decode-barrier-max", "attention_decode", "attention", "attention_decode 0-0",
     "            }\n        __syncthreads();\n#pragma unroll", "            }\n#pragma unroll"),
    ("decode-counter", "attention_decode", "attention", "attention_decode 0-0",
     "            a.a.counters[row] = 0;", "            a.a.counters[row] = 1;"),
    ("decode-last-group", "attention_decode", "attention", "attention_long",
     "for (uint32_t s = 0; s < groups; s++)", "for (uint32_t s = 0; s + 1 < groups; s++)"),
    ("decode-no-transpose", "attention_decode", "attention", "attention_decode 0-0",
     "transpose8x8(pack_bf16(", "(pack_bf16("),
    ("decode-rescale", "cuda_attention.cuh attention_decode", "attention", "attention_long",
     "__fmaf_rn(a.o, x, __fmul_rn(b.o, y))", "__fmaf_rn(a.o, x, b.o)"),
    # ---- attention by tiles
    ("prefill-mask", "attention_prefill", "attention", "attention_segments 0-0",
     "> w.position[i / 2])", ">= w.position[i / 2])"),
    ("prefill-copy-wait", "attention_prefill", "attention", "attention_segments 0-0",
     "copy_wait<1>();", "copy_wait<2>();"),
    ("prefill-barrier", "attention_prefill", "attention", "attention_segments 0-0",
     "            __syncthreads(); /* before the tile is overwritten */\n", ""),
    ("prefill-beyond-table", "attention_prefill", "attention", "attention_segments 0-0",
     "bool there = at < limit;", "bool there = true;", True),
    ("prefill-limit", "attention_prefill", "attention", "attention_segments 0-0",
     "m.rows[last < end ? last : end - 1].position + 1", "m.rows[first].position + 1"),
    # ---- heads
    ("rope-slot", "rope", "attention", "attention_segments 0-0",
     "row.position % GPU_KV_SUB * HD", "row.position / 2 % GPU_KV_SUB * HD"),
    ("rope-pairs", "cuda_attention.cuh rope", "attention", "attention_segments 1-1",
     "__fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s))", "__fsub_rn(__fmul_rn(b, c), __fmul_rn(a, s))"),
    # ---- the rest
    ("step-patched-slot", "step", "nodes", "step_begin 0-0", "slot = p[j].to;", ";"),
    ("rmsnorm-barrier", "rmsnorm", "nodes", "rmsnorm 0-0",
     "    __syncthreads();\n    sum = 0;", "    sum = 0;"),
    ("clear-tail", "kv", "nodes", "kv_clear_tail 0-0",
     "i = a.used * a.hp + threadIdx.x;", "i = (a.used + 1) * a.hp + threadIdx.x;"),
    ("checksum-words", "kv", "nodes", "kv_checksum 1-3", "(i + 2) * STEP", "(i + 1) * STEP"),
    ("sample-ties", "sample", "sampling", "sample_as_cpu 14-17",
     "tie && before >= keep", "tie && before > keep"),
    ("sample-barrier", "sample", "sampling", "sample_as_cpu 4-4",
     "            sm->bins.part[j][i] = 0;\n    }\n    __syncthreads();",
     "            sm->bins.part[j][i] = 0;\n    }"),
    ("sample-mask", "sample", "sampling", "sample_mask",
     "word >> i % 32 & 1", "word >> (i + 1) % 32 & 1"),
    ("sample-batch", "sample", "sampling", "sample_as_cpu 4-9",
     "base += AT_ONCE * THREADS) {\n        float x[AT_ONCE];\n        uint32_t word",
     "base += (AT_ONCE + 1) * THREADS) {\n        float x[AT_ONCE];\n        uint32_t word"),
    ("sample-count", "sample", "sampling", "sample_adjusts",
     "x = __fsub_rn(x, __fmul_rn(p->frequency, (float)a.count));",
     "x = __fsub_rn(x, p->frequency);"),
    ("sample-adjust-barrier", "sample", "sampling", "sample_adjusts",
     "            r.s[a.id] = adjusted(r.s[a.id], a, r.p);\n    }\n    __syncthreads();",
     "            r.s[a.id] = adjusted(r.s[a.id], a, r.p);\n    }"),
    ("sample-block-rest", "sample", "sampling", "sample_as_cpu 3-5",
     "for (; l == 0 && i < len; i++)", "for (; false;)"),
]


# The same without a fault: must pass, or the verdicts above mean nothing.
CONTROLS = [m[:4] + (m[4], m[4]) + m[6:] for m in MUTANTS
            if m[0] in ("linear-bucket", "decode-mask", "decode-rescale", "prefill-beyond-table",
                        "step-patched-slot", "sample-ties")]


def run(command, **kw):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)


class Builder:
    def __init__(self, build):
        self.plain, self.asan = build, build / "cuda-asan"
        self.flags = (build / "emu" / "flags").read_text().split()
        check = run(["pkg-config", "--libs", "check"]).stdout.split()
        self.libs = [*check, "-lxxhash", "-lpthread", "-lm"]
        self.asan_flags = (self.asan / "emu" / "flags").read_text().split()

    def caught(self, name, files, program, case, piece, becomes, asan=False):
        base = self.asan if asan else self.plain
        flags = self.asan_flags if asan else self.flags
        where = self.plain / "mutants" / name
        (where / "kernels").mkdir(parents=True, exist_ok=True)
        changed, *compiled = files.split()
        source = (TOP / "kernels" / (changed if "." in changed else changed + ".cu")).read_text()
        if source.count(piece) != 1:
            return None, f"the piece is {source.count(piece)} times in kernels/{changed}"
        target = where / "kernels" / (changed if "." in changed else changed + ".cu")
        target.write_text(source.replace(piece, becomes))
        unit = compiled[0] if compiled else changed
        if compiled:  # a changed header: its reader is compiled from a copy beside it
            (where / "kernels" / (unit + ".cu")).write_text(
                (TOP / "kernels" / (unit + ".cu")).read_text())
        objects = []
        for o in sorted((base / "emu" / "kernels").glob("*.o")):
            objects.append(where / "unit.o" if o.stem == unit else o)
        objects += sorted((base / "obj/tests/cuda_emu").glob("emu.o"))
        objects += [base / f"obj/tests/cuda/test_{program}.o", base / "obj/tests/harness.o",
                    base / "obj/common/engine/sample.o", base / "lib/libbase.a"]
        r = run([flags[0], f"-I{where}", *flags[1:], "-O0", "-x", "c++", "-w", "-c",
                 str(where / "kernels" / (unit + ".cu")), "-o", str(where / "unit.o")], cwd=TOP)
        if r.returncode:
            return None, r.stdout
        sanitizer = [f for f in flags if f.startswith("-fsanitize")]
        r = run([flags[0], *sanitizer, "-o", str(where / "test"), *map(str, objects), *self.libs],
                cwd=TOP)
        if r.returncode:
            return None, r.stdout
        name_of, *cases = case.split()
        env = dict(os.environ, CK_RUN_CASE=name_of, KERNEL_CASES=cases[0] if cases else "")
        try:
            r = run([str(where / "test")], cwd=TOP, env=env, timeout=120)
        except subprocess.TimeoutExpired:
            return None, "no verdict in 120 s"
        return r.returncode != 0, r.stdout


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=Path, required=True)
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    b = Builder(a.build.resolve())
    passed = failed = 0
    for m in MUTANTS + CONTROLS:
        if a.names and m[0] not in a.names:
            continue
        started = time.monotonic()
        caught, output = b.caught(*m)
        fault = m[4] != m[5]
        ok = caught is not None and caught == fault
        verdict = "error" if caught is None else "caught" if caught else "not caught"
        print(f"  {m[0] if fault else m[0] + ' without':<28} {time.monotonic() - started:5.1f} s  "
              f"{verdict}{'' if ok else ': WRONG'}", flush=True)
        passed, failed = passed + ok, failed + (not ok)
        if not ok:
            print(output)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
