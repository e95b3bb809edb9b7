#!/usr/bin/env bash
# What operators install: systemd units (units.sh), the Helm chart (chart.sh) and what documents promise
# (promises.sh); with LONG=1 also the units on a booted systemd (test_boot.py).
#   B     build directory with bin/ (default build)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp)
trap 'rm -f "$out"' EXIT
rc=0
cd "$here/../.."
{
    for part in units chart promises; do
        "$here/$part.sh" || rc=1
    done
    if [ "${LONG:-}" = 1 ]; then
        tests/pytest.sh "$here" -rs "$@" | sed -E 's/^SKIPPED \[[0-9]+\] ([^:]*)[^ ]*: /SKIP \1: /' || rc=1
    fi
    exit $rc
} 2>&1 | tee "$out" || rc=1
tests/sum.sh "$out" && exit $rc
