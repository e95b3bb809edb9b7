#!/usr/bin/env bash
# Fuzzes each target of tests/fuzz for a while; `make fuzz` builds and comes here.
#
#   tests/fuzz/run.sh [TARGET…]
#
#   B             build directory with fuzz/baton-fuzz (built with clang, libFuzzer, ASan and UBSan)
#   FUZZ_SECONDS  for each target (default 600)
#   FUZZ_KEEP     1: what was found new goes into the committed corpus, minimised
#
# New inputs are collected in $B/fuzz/corpus. What crashes is written to $B/fuzz; put it into
# tests/fuzz/corpus/TARGET with the fix.
set -euo pipefail
cd "$(dirname "$0")/../.."
B=${B:-build-fuzz}
seconds=${FUZZ_SECONDS:-600}
program=$B/fuzz/baton-fuzz
[ -x "$program" ] || { echo "no $program: make fuzz"; exit 1; }
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)
passed=0 failed=0
for t in "${targets[@]}"; do
    committed=tests/fuzz/corpus/$t work=$B/fuzz/corpus/$t
    mkdir -p "$committed" "$work"
    dict=()
    [ -f "tests/fuzz/$t.dict" ] && dict=(-dict="tests/fuzz/$t.dict")
    echo "== $t, $seconds s"
    rc=0
    FUZZ_TARGET=$t "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=4096 \
        -print_final_stats=1 -artifact_prefix="$B/fuzz/$t-" "${dict[@]}" "$work" "$committed" \
        >"$B/fuzz/$t.log" 2>&1 || rc=$?
    grep -E '^(stat::number_of_executed_units|stat::average_exec_per_sec|stat::new_units_added):' "$B/fuzz/$t.log" || true
    if [ "$rc" = 0 ]; then
        passed=$((passed + 1))
        if [ "${FUZZ_KEEP:-}" = 1 ]; then
            FUZZ_TARGET=$t "$program" -merge=1 -max_len=400 "$committed" "$work" >/dev/null 2>&1
        fi
    else
        failed=$((failed + 1))
        tail -n 40 "$B/fuzz/$t.log"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
