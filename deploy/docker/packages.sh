#!/usr/bin/env bash
# The packages that hold the shared libraries of these programs, one a line; libraries of no package
# (CUDA's, which the base image brings) are left out.
#
#   deploy/docker/packages.sh PROGRAM...
set -euo pipefail
for lib in $(ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u); do
    dpkg-query -S "$lib" 2>/dev/null || dpkg-query -S "$(realpath "$lib")" 2>/dev/null ||
        dpkg-query -S "/usr$lib" 2>/dev/null || true
done | sed 's/[:,].*//' | sort -u
