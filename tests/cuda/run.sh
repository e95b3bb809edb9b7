#!/usr/bin/env bash
# The CUDA backend without a GPU: its kernels and its host code on the emulation of tests/cuda_emu,
# then whole workers. `make test-cuda` builds and comes here. Parts run beside each other in two
# lanes; each is shown when it has ended.
set -euo pipefail
cd "$(dirname "$0")/../.."
export B=${B:-build} CUDA_BIN UNIT_LIMIT_S=${UNIT_LIMIT_S:-600}
CUDA_BIN=$(cd "$B/bin-emu" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
part() { # NAME COMMAND...
    local name=$1 rc=0
    shift
    "$@" >"$work/$name.out" 2>&1 </dev/null || rc=$?
    echo "$rc" >"$work/$name.rc"
    cat "$work/$name.out"
}
asan_tests() { B=$B/cuda-asan SANITIZE=1 tests/unit.sh cuda/; }
# The check on a device, as far as it goes without one.
device_check() {
    OUT=$B/gpu-emu/results tests/gpu/run.sh --emulate && tests/gpu/predict.py --check docs/CUDA.md &&
        echo "2 passed, 0 failed"
}
one() {
    part unit tests/unit.sh cuda/
    [ -n "${SANITIZE:-}" ] || part device_check device_check
    # Whole workers on fibers under a sanitizer take too long.
    [ -n "${SANITIZE:-}" ] || part e2e tests/e2e/run.sh test_cuda.py
}
two() {
    [ -z "${SANITIZE:-}" ] || return 0
    if [ -d "$B/cuda-asan" ]; then
        part asan asan_tests
        part mutants tests/cuda_emu/mutants.py --build "$B"
    fi
    part sass tests/cuda_emu/sass.sh "${CUDA_DIR:-build-cuda}" # what the compiler made, where nvcc is
}
if [ "$(nproc)" -gt 1 ]; then
    two &
    one
    wait
else
    one
    two
fi

rc=0
for f in "$work"/*.rc; do
    out=${f%.rc}.out
    grep -q '^SKIP.*no nvcc' "$out" && continue
    grep -xE '[0-9]+ passed, [0-9]+ failed' "$out" | tail -n 1 >>"$work/sums" || echo "0 passed, 1 failed" >>"$work/sums"
    [ "$(cat "$f")" = 0 ] || rc=1
done
tests/sum.sh "$work/sums" && exit $rc
