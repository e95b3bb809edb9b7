#!/usr/bin/env bash
# Chaos: faults injected into running clusters (chaos.py), and the experiments with promised numbers
# (test_*.py). With arguments only chaos.py runs, with these: --seed N --only I replays an injection,
# --list shows the table, --help the rest.
#   B     build directory with bin/ (default build)
#   LONG  1: 1,000 injections of a new seed, and the experiments marked long
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export BATON_BIN=${BATON_BIN:-$(cd "$root" && cd "${B:-build}/bin" && pwd)} PYTHONDONTWRITEBYTECODE=1
python=$("$root/tests/venv.sh")/bin/python

cd "$here"
[ $# = 0 ] || exec "$python" chaos.py "$@"

out=$(mktemp)
trap 'rm -f "$out"' EXIT
rc=0
injections=()
[ "${LONG:-}" != 1 ] || injections=(--injections 1000 --seed $((RANDOM * 32768 + RANDOM)))
{
    "$python" chaos.py "${injections[@]}" || rc=1
    "$here/../pytest.sh" "$here" -p notes . || rc=1
    exit $rc
} 2>&1 | tee "$out" || rc=1
"$here/../sum.sh" "$out" && exit $rc
