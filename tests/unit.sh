#!/usr/bin/env bash
# Runs the unit test programs below $B/tests, one after another.
#
#   tests/unit.sh [FILTER]    only those whose path contains FILTER; cuda/ only when asked for
#   UNIT_LIMIT_S              seconds that a program may take (300; idle machines need 30)
#
# A program that passes is one line; of one that fails everything it printed is shown. The last two
# lines are the sum in Check's own style and "N passed, N failed". Lines that begin with "SKIP " are
# passed on. Exit 1 when a check failed, a program died or hung, or there was nothing to run.
set -euo pipefail
cd "$(dirname "$0")/.."

B=${B:-build}
filter=${1:-}
limit_s=${UNIT_LIMIT_S:-300}
export CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-60}
[ -z "${LONG:-}" ] || limit_s=600
if [ -n "${SANITIZE:-}" ]; then
    limit_s=900
    export CK_TIMEOUT_MULTIPLIER=10
fi
. tests/sanitizers.sh

out=$(mktemp)
trap 'rm -f "$out"' EXIT
checks=0 failures=0 errors=0 programs=0

for program in "$B"/tests/*/test_*; do
    [ -x "$program" ] && [ -f "$program" ] || continue
    name=${program#"$B"/tests/}
    [ -f "tests/$name.c" ] || continue # left over from a test that is gone
    case $name in *"$filter"*) ;; *) continue ;; esac
    case $name:$filter in cuda/*:cuda*) ;; cuda/*) continue ;; esac # tests/cuda/run.sh has them
    programs=$((programs + 1))
    started=$(date +%s%N)
    rc=0
    timeout --kill-after=5 "$limit_s" "$program" >"$out" 2>&1 </dev/null || rc=$?
    ms=$((($(date +%s%N) - started) / 1000000))
    # Check's totals: "66%: Checks: 3, Failures: 1, Errors: 0"
    totals=$(sed -nE 's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+)$/\1 \2 \3/p' \
        "$out" | tail -n 1)
    read -r c f e <<<"${totals:-0 0 0}"
    verdict=ok
    if [ "$rc" != 0 ] || [ "$c" = 0 ]; then
        verdict=FAILED
        if [ $((f + e)) = 0 ]; then
            # It died outside of a check, hung, or ran none: that is one error of its own.
            c=$((c + 1)) e=$((e + 1))
            [ "$rc" = 124 ] && verdict="FAILED (stopped after $limit_s s)" || verdict="FAILED (exit $rc)"
        fi
        echo "---- $name"
        cat "$out"
        echo "----"
    else
        grep '^SKIP ' "$out" || true
    fi
    printf '  %-36s %5d checks %7d ms  %s\n' "$name" "$c" "$ms" "$verdict"
    checks=$((checks + c)) failures=$((failures + f)) errors=$((errors + e))
done

if [ "$programs" = 0 ]; then
    echo "no test program in $B/tests${filter:+ matches \"$filter\"}"
    checks=1 errors=1
fi
failed=$((failures + errors))
echo "$((100 * (checks - failed) / checks))%: Checks: $checks, Failures: $failures, Errors: $errors"
echo "$((checks - failed)) passed, $failed failed"
[ "$failed" = 0 ]
