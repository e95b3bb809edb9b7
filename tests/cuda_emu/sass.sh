#!/usr/bin/env bash
# What the compiler made of the kernels. From ptxas' own report: no kernel spills or has a stack
# frame. From the machine code: tensor-core instructions where they must be, no local memory,
# programmatic dependent launch where the architecture has it.
#
#   tests/cuda_emu/sass.sh DIR     DIR holds what kernels/nvcc.sh made (kernels/*.o, *.o.ptxas)
#
# The machine code needs cuobjdump and nvdisasm: from the toolkit, or from the cache, into which
# deploy/setup.sh --tests puts them. What cannot be looked at is said in a line "SKIP sass: ...". Ends
# with "N passed, N failed", one for each kernel and architecture and look at it.
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${1:?a directory of objects}
shopt -s nullglob
objects=("$dir"/kernels/*.o)
if [ ${#objects[@]} = 0 ]; then
    echo "SKIP sass: no device code in $dir (no nvcc)"
    exit 0
fi

out=$(mktemp)
trap 'rm -f "$out"' EXIT
passed=0 failed=0
sum() { # the "N passed, N failed" that $out ends with; what was wrong is shown
    local p f
    read -r p _ f _ < <(tail -n 1 "$out")
    passed=$((passed + p)) failed=$((failed + f))
    grep WRONG "$out" || true
}

cat "$dir"/kernels/*.ptxas | awk '
    /Compiling entry function/ { split($0, q, "\x27"); kernel = q[2] " " q[4]; n++ }
    /bytes stack frame/ && !/ 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/ {
        if (!(kernel in seen)) print "WRONG: " kernel ":" $0
        seen[kernel]
    }
    END { bad = length(seen); print n - bad " passed, " bad " failed" }' >"$out"
sum

for at in "${BATON_CACHE:-${HOME:-}/.cache/baton}"/cuda-tools/nvidia/cu*/bin /usr/local/cuda/bin; do
    PATH=$at:$PATH
done
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
    echo "SKIP sass: no cuobjdump and nvdisasm (deploy/setup.sh --tests fetches them)"
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
fi

for o in "${objects[@]}"; do
    cuobjdump -sass "$o" 2>/dev/null || true # an object without kernels
done | awk '
    # HMMA: mma.sync. LDL, STL: local memory. ACQBULK, PREEXIT: griddepcontrol. 128: loads of 16 bytes.
    function verdict(   bad) {
        if (name == "") return
        hot = name ~ /linear_kernel|attention_(decode|prefill)_kernel/
        if (hot && !n["HMMA"]) bad = bad " no HMMA"
        if (hot && !n["LDG128"]) bad = bad " no 16-byte loads"
        if (name ~ /prefill/ && !n["LDGSTS"]) bad = bad " no cp.async"
        if (n["LDL"] + n["STL"]) bad = bad " local memory"
        if (arch == "sm_80" && n["ACQBULK"] + n["PREEXIT"]) bad = bad " dependent launch on sm_80"
        if (arch != "sm_80" && (!n["ACQBULK"] || !n["PREEXIT"])) bad = bad " no dependent launch"
        printf "  %-7s %-60.60s %5d instructions %4d HMMA%s\n", arch, name, n["all"], n["HMMA"],
               bad == "" ? "" : "  WRONG:" bad
        if (bad == "") passed++; else failed++
    }
    /^[[:space:]]*Function : / { verdict(); name = $3; delete n; next }
    /^arch = / { verdict(); name = ""; arch = $3; next }
    /^[[:space:]]*\/\*[0-9a-f]+\*\/ / {
        op = $2 ~ /^@/ ? $3 : $2
        n["all"]++
        if (op ~ /^HMMA/) n["HMMA"]++
        if (op ~ /^LDL/) n["LDL"]++
        if (op ~ /^STL/) n["STL"]++
        if (op ~ /^LDGSTS/) n["LDGSTS"]++
        if (op ~ /^(LDG|LDS|LD)\..*128/) n["LDG128"]++
        if (op ~ /^ACQBULK/) n["ACQBULK"]++
        if (op ~ /^PREEXIT/) n["PREEXIT"]++
    }
    END { verdict(); print passed + 0 " passed, " failed + 0 " failed" }
' >"$out"
[ -z "${V:-}" ] || cat "$out"
sum
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
