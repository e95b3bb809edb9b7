#!/usr/bin/env bash
# The rules of the house that a compiler does not know. Lists every offence and exits 1 when there
# is one:
#   - a room includes only the rooms that NEEDS_<room> in the Makefile names (DESIGN, "Layout");
#   - every third-party header is included in one place only;
#   - a source file has at most 900 lines; nothing is left marked as unfinished;
#   - the top level of the repository holds what the README lists and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

LINES_MAX=900
TOP='README.md LICENSE Makefile common configs decoded deploy docs kernels prefilld routerd tests'

offences=$(mktemp)
trap 'rm -f "$offences"' EXIT
offence() { echo "$*" >>"$offences"; }

# Tracked files, and new ones that git does not ignore; not those deleted in the work tree.
mapfile -t all < <(git ls-files --cached --others --exclude-standard | sort -u)
files=()
for f in "${all[@]}"; do [ -e "$f" ] && files+=("$f"); done
sources=()
for f in "${files[@]}"; do
    case $f in *.c | *.h | *.cu | *.cuh) sources+=("$f") ;; esac
done

# ---- who includes whom ----
# `make print-rooms`: "DIRECTORY|FILE ROOM..." with the directory's own room first, then those it
# may use; the longest prefix of a path decides. Tests of a room may use what the room may use.
rooms=$(MAKEFLAGS="" make -s --no-print-directory NOSETUP=1 print-rooms)
grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "${sources[@]}" |
    awk -v rooms="$rooms" '
    BEGIN {
        n = split(rooms, lines, "\n")
        for (i = 1; i <= n; i++) {
            split(lines[i], w, " ")
            uses[w[1]] = lines[i] " "
            if (w[1] !~ /\.c$/) { room[w[1]] = w[2] }
        }
    }
    function home(path, table,    best, p) {
        best = ""
        for (p in table)
            if ((path == p || index(path, p "/") == 1) && length(p) > length(best)) best = p
        return best
    }
    {
        split($0, part, ":"); file = part[1]; line = part[2]
        match($0, /"[^"]*"/); inc = substr($0, RSTART + 1, RLENGTH - 2)
        where = file
        sub(/^tests\//, "", where)
        test = where != file
        if (test && inc ~ /^tests\//) next
        if (test && where ~ /^[a-z]+\/[^\/]*$/) {        # tests/<room>/<file>
            dir = substr(where, 1, index(where, "/") - 1); where = ""
            for (d in room) if (room[d] == dir) where = d "/test"
        } else if (test) where = ""
        if (where == "") next     # the harness, and directories that test several rooms at once
        from = home(where, uses); to = home(inc, room)
        if (to == "") { print file ":" line ": \"" inc "\" is not the path of a room from the top"; next }
        if (from == "") { print file ":" line ": in no room"; next }
        if (index(uses[from], " " room[to] " ") == 0)
            print file ":" line ": " from " may not include " inc
    }' >>"$offences"

# ---- third-party headers and their homes ----
home() { # PATTERN-OF-HEADER HOME-REGEX
    grep -HnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($1)[>\"]" "${sources[@]}" |
        grep -vE "^($2):" | sed 's/$/   (its home: '"${2//\//\\/}"')/' >>"$offences" || true
}
home 'jansson\.h' 'common/base/json\.h'
home 'ut(hash|list|array|string)\.h' 'common/base/map\.h'
home 'xxh(ash|3)\.h' 'common/base/hash\.c'
home 'ini\.h' 'common/base/config\.c'
home 'msgpack.*' 'common/proto/[^:]*'
home '(uv|llhttp)\.h|openssl/.*' 'common/net/[^:]*|tests/net/[^:]*'
home 'pcre2\.h|utf8proc\.h' 'common/text/[^:]*|tests/text/[^:]*'
home 'uc[pst]/.*' 'common/kv/[^:]*|tests/cuda_emu/fake_ucx\.c'
home 'immintrin\.h|x86intrin\.h|.mmintrin\.h' 'kernels/[^:]*_avx[^:]*\.[ch]'
home 'cuda.*|nccl\.h' 'kernels/[^:]*\.cuh?|tests/gpu/[^:]*\.cu'
home 'check\.h' 'tests/[^:]*'

# ---- size, and unfinished work ----
mark='\b(TO''DO|FIX''ME|XX''X)\b'
for f in "${files[@]}"; do
    case $f in
    tests/data/*) continue ;;
    *.c | *.h | *.cu | *.cuh | *.py | *.sh | Makefile)
        n=$(wc -l <"$f")
        [ "$n" -le $LINES_MAX ] || offence "$f: $n lines, at most $LINES_MAX" ;;
    esac
    case $f in
    *.c | *.h | *.cu | *.cuh | *.py | *.sh | *.md | *.conf | Makefile | .ci/run)
        grep -HnE "$mark" "$f" >>"$offences" || true ;;
    esac
done

# ---- the top level ----
for f in "${files[@]}"; do printf '%s\n' "${f%%/*}"; done | sort -u | while read -r entry; do
    case " $TOP " in *" $entry "*) continue ;; esac
    case $entry in .*) continue ;; esac
    offence "$entry: does not belong at the top of the repository"
done

if [ -s "$offences" ]; then
    cat "$offences"
    echo "lint: $(wc -l <"$offences") offences"
    exit 1
fi
echo "lint: ${#sources[@]} source files, no offence"
