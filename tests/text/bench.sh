#!/usr/bin/env bash
# The text room beside the Python packages tokenizers, tiktoken and jinja2, on one core (bench.py has
# the options). They live in an environment of their own below $BATON_CACHE.
#   B  build directory with bin/ (default build)
set -euo pipefail
cd "$(dirname "$0")/../.."
packages="tokenizers==0.23.3 tiktoken==0.14.0 jinja2==3.1.6"
cache=${BATON_CACHE:-$HOME/.cache/baton}
venv=$cache/venv-bench
if [ "$(cat "$venv/packages" 2>/dev/null)" != "$packages" ]; then
    echo "bench: installing $packages into $venv" >&2
    [ -x "$venv/bin/pip" ] || { rm -rf "$venv" && python3 -m venv "$venv" >&2; }
    # shellcheck disable=SC2086
    "$venv/bin/pip" install -q --disable-pip-version-check $packages >&2
    echo "$packages" >"$venv/packages"
fi
deploy/fetch_model.sh vocabs >/dev/null
export TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1
core=$(taskset -pc $$ | sed 's/.*: \([0-9]*\).*/\1/')
exec taskset -c "$core" "$venv/bin/python" tests/text/bench.py --binary "${B:-build}/bin/baton-text" "$@"
