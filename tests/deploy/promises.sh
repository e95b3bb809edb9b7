#!/usr/bin/env bash
# What the documents promise. docs/SECURITY.md names tests that exist. promtool takes the alert rules and
# every expression of the Grafana dashboard, and both use only metrics that docs/OPERATIONS.md describes
# (which tests/e2e/test_metrics.py compares with what is exported). The manual pages are well formed.
set -euo pipefail
cd "$(dirname "$0")/../.."
files=deploy/helm/baton/files
passed=0 failed=0
ok() { passed=$((passed + 1)); }
bad() {
    echo "$*"
    failed=$((failed + 1))
}

documented=$(sed -n 's/^| `\(baton_[a-z_]*\)`.*/\1/p' docs/OPERATIONS.md)
for f in $files/alerts.yaml $files/dashboard.json; do
    for name in $(grep -oE 'baton_[a-z_]+' "$f" | sed -E 's/_seconds_(bucket|sum|count)$/_seconds/' | sort -u); do
        if grep -qx "$name" <<<"$documented"; then ok; else bad "$f: docs/OPERATIONS.md does not know $name"; fi
    done
done
for name in $(grep -oE 'alert: Baton[A-Za-z]+' $files/alerts.yaml | cut -d' ' -f2); do
    if grep -q "$name" docs/OPERATIONS.md; then ok; else bad "docs/OPERATIONS.md has no cure for $name"; fi
done
# `path::test`: a Check test or a pytest function of that name
for t in $(grep -oE '`tests/[a-z0-9_/.]+::[a-z0-9_]+`' docs/SECURITY.md | tr -d '`' | sort -u); do
    if grep -qE "(START_TEST\(|def )${t##*::}\b" "${t%%::*}" 2>/dev/null; then ok; else bad "docs/SECURITY.md: there is no $t"; fi
done
# manual pages, as `make install` makes them
for p in routerd prefilld decoded; do
    page=$(deploy/man.sh "${B:-build}/bin/$p")
    if ! command -v man >/dev/null || ! command -v groff >/dev/null; then
        [ $p != routerd ] || echo "SKIP manual pages: no man, or no groff"
    elif warnings=$(groff -k -man -Tutf8 -ww -z <<<"$page" 2>&1) && [ -z "$warnings" ]; then
        ok
    else
        bad "$p(8): $warnings"
    fi
    for key in $(sed -n 's/^\([a-z0-9_]*\) =.*/\1/p' "configs/$p.conf"); do
        grep -q "^\.B $key\$" <<<"$page" || bad "$p(8) lacks $key"
    done
done
if command -v promtool >/dev/null; then
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    if out=$(promtool check rules $files/alerts.yaml 2>&1); then ok; else bad "$out"; fi
    # the dashboard's expressions as recording rules, which promtool parses
    python3 - $files/dashboard.json >"$tmp/rules.yaml" <<'PY'
import json, sys
panels = json.load(open(sys.argv[1]))["panels"]
exprs = [t["expr"].replace("$__rate_interval", "5m") for p in panels for t in p.get("targets", [])]
rules = [{"record": f"dashboard:{i}", "expr": e} for i, e in enumerate(exprs)]
print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
PY
    if out=$(promtool check rules "$tmp/rules.yaml" 2>&1); then ok; else bad "$out"; fi
else
    echo "SKIP alert rules: no promtool (deploy/setup.sh --tests installs it)"
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
