#!/usr/bin/env bash
# Everything CI runs, in the order of what fails fastest: lint, formatting, unit tests, end-to-end
# tests. `make check` builds first and then comes here.
#
#   LONG=1      also what takes longer
#   SANITIZE=1  the programs are built with a sanitizer: time limits are longer
#
# Every part runs even when an earlier one failed. What had to be left out is listed by name at the
# end, then the sum of all parts: a line in Check's style and "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
# A make from here has no part in the job server of the one that called.
MAKEFLAGS=$(sed -E 's/-j[0-9]* --jobserver-[a-z]+=[^ ]*//' <<<"${MAKEFLAGS:-}")

export B=${B:-build} LONG=${LONG:-} SANITIZE=${SANITIZE:-}
. tests/sanitizers.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=() broken=()

# part NAME COMMAND...: runs it, shows its output, and adds its "N passed, N failed" to the sum;
# a part that prints no such line counts as one check.
part() {
    local name=$1 rc=0 sum p f
    shift
    echo "== $name"
    "$@" 2>&1 </dev/null | tee "$log" || rc=$?
    mapfile -t -O "${#skipped[@]}" skipped < <(sed -n 's/^SKIP //p' "$log" | sort -u)
    sum=$(grep -xE '[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1 || true)
    p=$((rc == 0)) f=$((rc != 0))
    if [ -n "$sum" ]; then
        read -r p _ f _ <<<"$sum"
        [ "$rc" = 0 ] || [ "$f" != 0 ] || f=1 # it failed after its last line
    fi
    [ "$f" = 0 ] || broken+=("$name")
    passed=$((passed + p)) failed=$((failed + f))
}

format() {
    # Another major version of clang-format breaks lines elsewhere.
    local want have
    want=$(sed -n 's/^# clang-format //p' .clang-format)
    if ! command -v clang-format >/dev/null; then
        echo "SKIP fmt-check: no clang-format (deploy/setup.sh --fmt installs it)"
    elif have=$(clang-format --version | sed -E 's/.*version ([0-9]+).*/\1/') && [ "$have" != "$want" ]; then
        echo "SKIP fmt-check: clang-format $have found, the files are formatted with $want"
    else
        make -s --no-print-directory fmt-check
    fi
}

if [ -z "$SANITIZE" ]; then
    part lint tests/lint.sh
    part fmt-check format
    part configs make -s --no-print-directory NOSETUP=1 configs-check
fi
# Models and vocabularies that the tests read; what is in the cache is not fetched again.
if [ "${BATON_OFFLINE:-}" != 1 ]; then
    part "model" deploy/fetch_model.sh
    part "vocabularies" deploy/fetch_model.sh vocabs
fi
part "unit tests" tests/unit.sh
part "chat templates against jinja2" tests/text/diff_jinja.sh
part "grammars against jsonschema and llguidance" tests/text/diff_schema.sh
part "cuda emulation" tests/cuda/run.sh
if [ -x tests/e2e/run.sh ]; then
    part "end-to-end tests" tests/e2e/run.sh --ignore=test_cuda.py # the part before ran it
else
    skipped+=("end-to-end tests: there is no tests/e2e/run.sh")
fi
part chaos tests/chaos/run.sh
[ -n "$SANITIZE" ] || part deploy tests/deploy/run.sh

echo "=="
for s in "${skipped[@]}"; do echo "skipped: $s"; done
for b in "${broken[@]}"; do echo "failed: $b"; done
total=$((passed + failed))
echo "$((100 * passed / total))%: Checks: $total, Failures: $failed, Errors: 0"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
