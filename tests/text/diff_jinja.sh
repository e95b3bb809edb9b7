#!/usr/bin/env bash
# The chat-template interpreter against Python's jinja2 over generated templates: 1,000, or 20,000
# with LONG=1. Arguments go to diff_jinja.py (--seed, --count, …).
#   B  build directory with bin/ (default build)
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(tests/venv.sh)
count=1000
[ "${LONG:-0}" = 1 ] && count=20000
exec "$venv/bin/python" tests/text/diff_jinja.py --command "${B:-build}/bin/baton-text render" --count "$count" "$@"
