#!/usr/bin/env bash
# The grammar engine over generated JSON Schemas: random answers by its masks are valid by Python's
# jsonschema (40 schemas, 500 with LONG=1), every mask is that of llguidance but for differences that
# have an explanation (10, 300), and a mask takes at most 100 us at the 95th percentile for a vocabulary
# of 128,000 tokens.
#   B  build directory with bin/ (default build)
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(tests/venv.sh)
cache=${BATON_CACHE:-$HOME/.cache/baton}
export BATON_TEXT=${B:-build}/bin/baton-text PYTHONDONTWRITEBYTECODE=1
walks=40 masks=10
[ "${LONG:-0}" = 1 ] && walks=500 masks=300
rc=0 passed=0
try() { if "$venv/bin/python" tests/text/diff_schema.py "$@"; then passed=$((passed + 1)); else rc=1; fi; }
n=1
if [ -e "$cache/SmolLM2-135M-Instruct.Q4_1.gguf" ]; then
    try masks "$cache/SmolLM2-135M-Instruct.Q4_1.gguf" $masks
else
    echo "SKIP masks against llguidance: there is no model" && n=0
fi
if [ -e "$cache/vocabs/ggml-vocab-llama-bpe.gguf" ]; then
    n=$((n + 1))
    try walks "$cache/vocabs/ggml-vocab-llama-bpe.gguf" $walks
else
    echo "SKIP schemas against jsonschema: there is no vocabulary"
fi
echo "$passed passed, $((n - passed)) failed"
exit $rc
