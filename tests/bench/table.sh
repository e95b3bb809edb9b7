#!/usr/bin/env bash
# What the CPU engine makes of this machine: baton-bench over weight formats, threads and instruction
# sets, as Markdown tables of speeds and of their shares of ceilings that the same runs measured. Fails
# when a share exceeds 105 %: then the ceiling was not one, or the machine was not idle. The whole
# table takes about six minutes.
#
#   tests/bench/table.sh [kernels] [formats] [prompts] [context] [sets] [step]     (default: all)
#
#   MODEL   model file (the default model, whose Q4_1 weights become int8 and bf16 for those rows)
#   RUNS    measurements of each phase (5)      THREADS   ("1 N": one core and all)
#   B       build directory (build)
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=${B:-build}/bin/baton-bench
model=${MODEL:-$(deploy/fetch_model.sh)}
threads=${THREADS:-$( (echo 1 && nproc) | uniq)}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

run() { # TITLE OPTIONS...
    local title=$1
    shift
    echo "{\"phase\":\"title\",\"title\":\"$title\"}" >>"$out"
    "$bench" --json "$@" >>"$out"
}
engine() { # TITLE OPTIONS...
    run "$1" --model "$model" --runs "${RUNS:-5}" "${@:2}"
}

kernels() { run "kernels, one core" --no-engine --kernels; }
formats() {
    local w t
    for t in $threads; do
        for w in auto int8 bf16; do
            engine "weights $w, $t thread(s)" --weights $w --threads "$t"
        done
    done
}
prompts() { engine "prompts, $(nproc) threads" --threads "$(nproc)" --prefill 512,1024,2048,4096,8192 --decode 0; }
context() {
    local t
    for t in $threads; do
        engine "long contexts, $t thread(s)" --threads "$t" --prefill 0 --batch 1 --context 2000,8000 --decode 16
        engine "16 sequences at 1,000, $t thread(s)" --threads "$t" --prefill 0 --batch 16 --context 1000 --decode 16
    done
}
sets() {
    local set
    for set in avx2 c; do
        engine "instruction set $set, $(nproc) threads" --isa $set --threads "$(nproc)" --runs 3 --prefill 128 --batch 1,16 --decode 4
    done
}
step() { engine "one step" --prefill 0 --decode 0; }

[ $# -gt 0 ] || set -- kernels formats prompts context sets step
for part; do
    case $part in
    kernels | formats | prompts | context | sets | step) "$part" ;;
    *)
        sed -n '2,/^set/{/^set\|shellcheck/!s/^# \{0,1\}//p}' "$0"
        exit 2 ;;
    esac
done

python3 - "$out" <<'PY'
import json, sys
failed = 0
columns = None

def row(names, cells):
    global columns
    if columns != names:
        print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
        columns = names
    print(f"| {' | '.join(cells)} |")

for line in open(sys.argv[1]):
    d = json.loads(line)
    share = d.get("share", 0)
    part = f"{100 * share:.0f} %" + (" FAILED" if share > 1.05 else "")
    failed += share > 1.05
    if d["phase"] == "title":
        print(f"\n### {d['title']}")
        columns = None
    elif d["phase"] == "ceiling":
        row(["ceiling", "value"], [d["kind"], f"{d['value']:.1f} {d['unit']}"])
    elif d["phase"] == "kernel":
        row(["kernel", "µs", "GOP/s", "GB/s", "share", "of"],
            [d["name"], f"{d['us']:.0f}", f"{d['gop_s']:.0f}", f"{d['gb_s']:.1f}", part, d["bound"]])
    elif d["phase"] in ("prefill", "decode"):
        what = f"prompt of {d['tokens']}" if d["phase"] == "prefill" else f"{d['batch']} x decode at {d['context']}"
        row(["phase", "tok/s", "ms", "GOP/s", "GB/s", "share", "of"],
            [what, f"{d['tok_s']:,.0f}", f"{d['ms']:.1f}", f"{d['gop_s']:.0f}", f"{d['gb_s']:.1f}", part, d["bound"]])
    elif d["phase"] == "op" and d["op"] == "attention":
        row(columns, ["of it, attention", "", f"{d['ms']:.1f} in all", f"{d['gop_s']:.0f}", f"{d['gb_s']:.1f}", part, ""])
    elif d["phase"] == "step":
        row(["one step", "value"], ["outside of its kernels", f"{d['overhead_us']:.1f} µs"])
        row(columns, ["allocations in 200 steps", str(d["allocations"])])
    elif d["phase"] == "ready":
        row(["one step", "value"], ["ready, from the file", f"{d['seconds']:.2f} s"])
if failed:
    sys.exit(f"{failed} shares exceed 105 %: what they are held against is no ceiling")
PY
