#!/usr/bin/env bash
# Prints the path of the virtual environment with the Python packages that the tests use; it is made
# below $BATON_CACHE when it is not there, or lacks one of them.
set -euo pipefail
packages="pytest==9.2.0 openai==3.57.0 jinja2==3.1.6 schemathesis==4.32.5 llguidance==1.9.1"
packages+=" jsonschema==4.26.0 rfc3339-validator==0.1.4 fqdn==1.5.1"
cache=${BATON_CACHE:-$HOME/.cache/baton}
venv=$cache/venv-$(cksum <<<"$packages" | cut -d" " -f1) # sets of packages side by side

mkdir -p "$cache"
exec 9>"$cache/venv.lock"
flock 9
if [ "$(cat "$venv/packages" 2>/dev/null)" != "$packages" ]; then
    echo "tests: installing $packages into $venv" >&2
    [ -x "$venv/bin/pip" ] || { rm -rf "$venv" && python3 -m venv "$venv" >&2; }
    # shellcheck disable=SC2086
    "$venv/bin/pip" install -q --disable-pip-version-check $packages >&2
    echo "$packages" >"$venv/packages"
fi
echo "$venv"
