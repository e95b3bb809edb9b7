#!/usr/bin/env bash
# The systemd units as `make install` would put them: systemd-analyze has nothing to say of them, and
# what they leave exposed stays below the limits (0 is nothing, 10 everything).
#   B    build directory with bin/ (default build)
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v systemd-analyze >/dev/null; then
    echo "SKIP units: no systemd-analyze"
    echo "0 passed, 0 failed"
    exit
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { # NAME COMMAND...: passes when it ends with 0 and says nothing
    local name=$1 out rc=0
    shift
    out=$("$@" 2>&1) || rc=$?
    if [ $rc = 0 ] && [ -z "$out" ]; then
        passed=$((passed + 1))
    else
        echo "$name: rc $rc"
        sed 's/^/  /' <<<"$out"
        failed=$((failed + 1))
    fi
}

MAKEFLAGS="" make -s --no-print-directory NOSETUP=1 install-units DESTDIR="$dir" PREFIX=/usr
units=$dir/usr/lib/systemd/system
mkdir -p "$dir/bin"
for p in routerd prefilld decoded; do ln -s "$(realpath "${B:-build}/bin/$p")" "$dir/bin/$p"; done
sed -i "s|/usr/bin/|$dir/bin/|" "$units"/*.service # verify wants the programs to be there
cd "$units"
for u in *; do check "verify $u" systemd-analyze --man=no verify "./$u"; done

exposure() { # UNIT LIMIT, in tenths
    local got
    got=$(systemd-analyze security --offline=true "./$1" | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
    echo "exposure of $1: $got" >&3
    [ -n "$got" ] && [ "$(tr -d . <<<"$got")" -le "$2" ]
}
exec 3>&1
check "security routerd" exposure routerd.service 20
check "security prefilld" exposure prefilld@.service 35
check "security decoded" exposure decoded@.service 35
echo "$passed passed, $failed failed"
[ $failed = 0 ]
