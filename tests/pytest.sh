#!/usr/bin/env bash
# Runs pytest in a folder of tests, with the Python packages of tests/venv.sh. The last line is
# "N passed, N failed"; what could not even be set up has failed.
#   tests/pytest.sh FOLDER [ARGUMENTS OF PYTEST]
#   B     build directory with bin/ (default build)
#   LONG  1: also the tests marked long
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$("$root/tests/venv.sh")
export BATON_BIN=${BATON_BIN:-$(cd "$root" && cd "${B:-build}/bin" && pwd)} PYTHONDONTWRITEBYTECODE=1

mark="not long"
[ "${LONG:-}" = 1 ] && mark=""
cd "$1"
shift
out=$(mktemp)
trap 'rm -f "$out"' EXIT
rc=0
"$venv/bin/python" -m pytest -q --no-header -p no:cacheprovider ${mark:+-m "$mark"} "$@" 2>&1 | tee "$out" || rc=$?
# The line of pytest's own: "1 failed, 30 passed, 2 skipped, 1 error in 53.18s".
awk -v rc=$rc '
    /^[0-9]+ (passed|failed|skipped|deselected|error|warning).* in [0-9.]+s/ {
        p = f = 0
        n = split($0, w, /,? /)
        for (i = 1; i < n; i++) { if (w[i + 1] == "passed") p = w[i]; if (w[i + 1] ~ /^(failed|errors?)$/) f += w[i] }
    }
    END {print p + 0 " passed, " (f ? f : rc != 0) " failed"}' "$out"
exit $rc
