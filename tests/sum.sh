#!/usr/bin/env bash
# Adds up all lines "N passed, N failed" of the files (or of standard input) into one such line.
# Exit 1 when something failed, or nothing says that it ran.
exec awk '
    /^[0-9]+ passed, [0-9]+ failed$/ {p += $1; f += $3; n++}
    END {
        f += n == 0
        print p + 0 " passed, " f " failed"
        exit f > 0
    }' "$@"
