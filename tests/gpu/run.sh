#!/usr/bin/env bash
# The check on a real GPU: one script, at most eight minutes on one H200, nothing from the network and
# no model files. Results are written as they come to $OUT (default build/gpu-results), a table of
# measured against predicted at the end.
#
#   tests/gpu/run.sh            everything
#   tests/gpu/run.sh --emulate  a dry run of what can run without a GPU (build/gpu-emu)
#   GPU_BIN=DIR                 prebuilt programs to use when nothing can be built here
#   LIMIT_S                     seconds in all (450)
#
# Sections run under `timeout`; one that fails or takes too long does not stop the others. The exit
# status is 1 when a check of correctness failed; speed is only reported.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

OUT=${OUT:-build/gpu-results}
B=${B:-build}
LIMIT_S=${LIMIT_S:-450}
emulate=
[ "${1:-}" = --emulate ] && emulate=1
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
values=$OUT/values.txt # "NAME VALUE UNIT" of all sections
: >"$values"
: >"$OUT/summary.txt"
start=$SECONDS
failed=0
export TESTS_DATA=$PWD/tests/data CK_FORK=no

say() { echo "$*" | tee -a "$OUT/summary.txt"; }

# section NAME SECONDS COMMAND...: output into $OUT/NAME.txt; false when it failed
section() {
    local name=$1 limit=$2 left rc=0 began=$SECONDS
    shift 2
    left=$((LIMIT_S - (SECONDS - start)))
    if [ "$left" -lt 5 ]; then
        say "$name: left out, no time"
        return 1
    fi
    [ "$limit" -le "$left" ] || limit=$left
    timeout --kill-after=5 "$limit" "$@" >"$OUT/$name.txt" 2>&1 </dev/null || rc=$?
    grep -E '^[a-z0-9_.]+ -?[0-9.]+ [^ ]+$' "$OUT/$name.txt" >>"$values"
    case $rc in
    0) say "$name: ok, $((SECONDS - began)) s" ;;
    124 | 137) say "$name: stopped after $limit s" ;;
    *) say "$name: FAILED ($rc), $((SECONDS - began)) s: $(grep -v INFO "$OUT/$name.txt" | tail -n 1)" ;;
    esac
    return "$rc"
}
# The same for a check of correctness.
must() { section "$@" || failed=1; }

# ---- programs ----

if [ -n "$emulate" ]; then
    bin=$B/gpu-emu
    tiny=--tiny
else
    bin=$B/gpu
    tiny=
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64
    export PATH=$PATH:/usr/local/cuda/bin
    if ! command -v nvidia-smi >/dev/null; then
        echo "run.sh: no nvidia-smi: there is no GPU here (--emulate for a dry run)"
        exit 2
    fi
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv >"$OUT/smi.txt" 2>&1
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [ "$arch" = 90 ] && arch=90a
    if command -v nvcc >/dev/null && pkg-config --exists check jansson libxxhash 2>/dev/null; then
        section build 150 make NOSETUP=1 B="$B" CUDA=yes GPU_ARCH="$arch" CUDA_DIR="build-cuda/$arch" -j"$(nproc)" gpu ||
            bin=${GPU_BIN:-$bin}
    else
        bin=${GPU_BIN:-$bin}
        say "build: left out (no nvcc or no packages): using $bin"
    fi
fi
if [ ! -x "$bin/bench" ]; then
    say "no programs in $bin"
    exit 1
fi

# ---- sections ----

if [ -z "$emulate" ]; then
    section probe 20 "$bin/ceilings" probe
    section stream 30 "$bin/ceilings" stream
    section launch 30 "$bin/ceilings" launch
fi
section gemm 40 "$bin/bench" gemm $tiny
if [ -z "$emulate" ]; then
    for t in linear attention nodes sampling; do
        must "numerics_$t" 60 "$bin/test_$t"
    done
    must engine 60 "$bin/test_engine"
    if command -v compute-sanitizer >/dev/null; then
        export CK_RUN_CASE=steps
        must memcheck 60 compute-sanitizer --tool memcheck --error-exitcode 3 "$bin/test_engine"
        must racecheck 60 compute-sanitizer --tool racecheck --error-exitcode 3 "$bin/test_engine"
        unset CK_RUN_CASE
    else
        say "memcheck, racecheck: left out, there is no compute-sanitizer"
    fi
fi
section decode 150 "$bin/bench" decode $tiny
section prefill 60 "$bin/bench" prefill $tiny

# ---- the table ----

# Predicted from the ceilings that were just measured (else an H200's) by the formulas of
# docs/CUDA.md, for the shape of Llama-3.1-8B.
awk '
{ v[$1] = $2; order[n++] = $1 }
function get(name, otherwise) { return name in v ? v[name] : otherwise }
END {
    read = get("ceiling.read", 4300) * 1e9
    gemm = get("gemm.square.m8192.flops", 790) * 1e12
    pdl = get("launch.graph.pdl.n1000.total", 0); one = get("launch.graph.pdl.n1.total", 0)
    gap = pdl > 0 ? (pdl - one) / 999 * 1e-6 : 1.3e-6
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    params = 32 * layer + 4096 * 128256; kv = 131072; nodes = 163
    printf "%-28s %12s %12s %8s\n", "what", "measured", "predicted", "share"
    for (i = 0; i < n; i++) {
        name = order[i]
        if (match(name, /^decode\.(graph|eager)\.b[0-9]+\.c[0-9]+\.ms$/)) {
            split(name, part, "."); b = substr(part[3], 2); c = substr(part[4], 2)
            linear = 2 * params / read; most = 2 * params * b / gemm
            t = (linear > most ? linear : most) + b * c * kv / read + nodes * gap
        } else if (match(name, /^prefill\.s[0-9]+\.ms$/)) {
            split(name, part, "."); s = substr(part[2], 2)
            t = 2 * s * 32 * layer / gemm + 2 * 4096 * 32 * s * s / (350e12)
        } else continue
        printf "%-28s %9.3f ms %9.3f ms %7.0f%%\n", name, v[name], t * 1e3, 100 * t * 1e3 / v[name]
    }
    for (i = 0; i < n; i++)
        if (order[i] ~ /^(ceiling|launch|args|probe)\./) printf "%-34s %s\n", order[i], v[order[i]]
}' "$values" >"$OUT/table.txt"
cat "$OUT/table.txt"
say "$((SECONDS - start)) s in all; $([ $failed = 0 ] && echo "every check passed" || echo "CHECKS FAILED")"
exit $failed
