#!/usr/bin/env bash
# Compiles one file with nvcc and keeps what ptxas says of each kernel (registers, shared memory,
# spills) in OBJECT.ptxas, which tests/cuda_emu/sass.sh judges. Warnings and errors are passed on.
#
#   kernels/nvcc.sh NVCC FLAGS... -o OBJECT
set -euo pipefail

object=${*: -1}
part=$object.$$ # several builds may come here at once: an object appears as a whole
log=$part.ptxas
trap 'rm -f "$part" "$log"' EXIT
rc=0
"${@:1:$#-1}" "$part" -Xptxas -v,-warn-spills 2>"$log" || rc=$?
grep -vE '^ptxas info|^    [0-9]+ bytes stack frame|^ *$' "$log" >&2 || true
[ "$rc" = 0 ] || exit "$rc"
mv "$log" "$object.ptxas"
mv "$part" "$object"
