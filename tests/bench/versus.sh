#!/usr/bin/env bash
# Baton beside llama.cpp and vLLM-CPU: the same model, the same work, the same cores, in turns; prints
# medians and ratios. No check needs it. It wants an idle machine.
#
#   tests/bench/versus.sh [install] [engine] [serve] [interfere] [report]      (default: all)
#
# install    what is missing of peers.sh: llama vllm models; what cannot be installed is left out below
# engine     without a server, llama.cpp against baton-bench: prompts of 512 tokens, then one, 16 and
#            32 sequences that decode
# serve      over HTTP (load.py), vLLM in bf16 against Baton with the default file and with bf16
#            weights: time to the first token, output tokens/s of 1, 4, 16 and 32 clients
# interfere  16 streams, and a prompt of 6,000 tokens arrives: what it does to their gaps
# report     the tables of everything measured so far
#
#   RUNS       rounds (5; serve and interfere: 2)        THREADS   of engine ("1 2")
#   FORMATS    of engine ("Q4_1 Q8_0 BF16")              RESULTS   file of results, appended to
#   B          build directory (build)                   PEERS     "llama vllm" for all but engine
#   LOAD       more options of load.py
# shellcheck disable=SC2086
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
peers=${BATON_CACHE:-$HOME/.cache/baton}/peers
results=${RESULTS:-$peers/versus.jsonl}
B=${B:-build}
work=$(mktemp -d)
started=() # process groups of peers
trap 'stop_all; rm -rf "$work"' EXIT

say() { echo "versus: $*" >&2; }
stop_peers() {
    local group
    for group in "${started[@]}"; do
        kill -TERM -- "-$group" 2>/dev/null || continue
        for _ in $(seq 100); do kill -0 -- "-$group" 2>/dev/null || break; sleep 0.1; done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    started=()
}
stop_all() {
    local dir
    stop_peers
    for dir in "$work"/cluster-*; do
        [ ! -d "$dir" ] || deploy/local.sh stop --dir "$dir" >&2 || true
    done
}
model() { # FORMAT
    case $1 in
    Q4_1) deploy/fetch_model.sh ;;
    *) echo "$peers/models/$1.gguf" ;;
    esac
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# A line of results: WHO and LABEL, with what FILTER (python, over d, one JSON object) makes of stdin.
record() { # WHO LABEL FILTER
    python3 -c '
import json, sys
who, label = sys.argv[1:3]
for line in sys.stdin:
    if not line.startswith("{"):
        continue
    d = json.loads(line)
    for what, value in eval("(" + sys.argv[3] + ")"):
        print(json.dumps({"who": who, "label": label, "what": what, "value": round(value, 2)}))
' "$@" >>"$results"
}

# ---- engine ----

baton_engine() { # FORMAT THREADS BATCHES
    "$B/bin/baton-bench" --model "$(model "$1")" --threads "$2" --prefill 512 --batch "$3" --runs 1 --json |
        record baton "$1, $2 threads" '
            [("prefill 512, tok/s", d["tok_s"])] if d["phase"] == "prefill" else
            [("decode %d, tok/s" % d["batch"], d["tok_s"])] if d["phase"] == "decode" else []'
}
llama_engine() { # FORMAT THREADS BATCHES
    local bin=$peers/llama-build/bin file more=${3#1}
    file=$(model "$1")
    "$bin/llama-bench" -m "$file" -t "$2" -p 512 -n 32 -r 1 -o jsonl 2>>"$work/log" |
        record llama.cpp "$1, $2 threads" '
            [("prefill 512, tok/s", d["avg_ts"])] if d["n_gen"] == 0 else [("decode 1, tok/s", d["avg_ts"])]'
    [ -z "$more" ] || "$bin/llama-batched-bench" -m "$file" -c 8192 -b 2048 -ub 512 -t "$2" -tb "$2" -npp 16 -ntg 32 \
        -npl "${more#,}" --output-format jsonl 2>>"$work/log" |
        record llama.cpp "$1, $2 threads" '[("decode %d, tok/s" % d["pl"], d["speed_tg"])]'
}
engine() {
    local format threads batches
    [ -e "$peers/llama-build/done" ] || { say "engine: there is no llama.cpp (peers.sh llama)"; return; }
    for ((i = 0; i < ${RUNS:-5}; i++)); do
        for format in ${FORMATS:-Q4_1 Q8_0 BF16}; do
            for threads in ${THREADS:-1 2}; do
                batches=1
                if [ "$threads" != 1 ] && [ "$format" != BF16 ]; then batches=1,16,32; fi
                llama_engine "$format" "$threads" $batches
                baton_engine "$format" "$threads" $batches
            done
        done
    done
}

# ---- servers ----

wait_up() { # URL LOG
    for _ in $(seq 600); do
        curl -s -m 1 -o /dev/null --fail "$1/health" && return
        kill -0 "${started[-1]}" 2>/dev/null || { tail -n 20 "$2" >&2; return 1; }
        sleep 0.5
    done
    say "$1 does not come up"
    return 1
}
start_vllm() { # sets url
    local port venv=$peers/venv-vllm preload
    port=$(free_port)
    preload=$(find "$venv" /usr/lib -name 'libtcmalloc_minimal.so.4' -o -name libiomp5.so 2>/dev/null | paste -sd:)
    cores=0-$(($(nproc) - 1))
    HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=$cores VLLM_CPU_NUM_OF_RESERVED_CPU=0 \
        VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 LD_PRELOAD=$preload PATH=$venv/bin:$PATH \
        setsid "$venv/bin/vllm" serve "$peers/models/hf" --served-model-name m --dtype bfloat16 --host 127.0.0.1 \
        --port "$port" --max-model-len 8192 --max-num-seqs 64 --no-enable-log-requests "$@" >"$work/vllm.log" 2>&1 &
    started+=($!)
    url=http://127.0.0.1:$port
    wait_up "$url" "$work/vllm.log"
}
start_llama() { # FORMAT; sets url
    local port
    port=$(free_port)
    setsid "$peers/llama-build/bin/llama-server" -m "$(model "$1")" --host 127.0.0.1 --port "$port" -t "$(nproc)" \
        -tb "$(nproc)" -np 33 -c $((33 * 8192)) --no-kv-unified --no-webui -a m >"$work/llama.log" 2>&1 &
    started+=($!)
    url=http://127.0.0.1:$port
    wait_up "$url" "$work/llama.log"
}
# A KV cache of 32,768 tokens, filled once: memory that nobody has touched yet costs a virtual machine
# a quarter second for 4,096 tokens. vLLM touches its own when it starts.
start_baton() { # NAME OPTIONS...; sets url
    local dir=$work/cluster-$1
    shift
    deploy/local.sh start --dir "$dir" --port 0 --set kv_blocks=2048 "$@" >&2
    url=http://$(deploy/local.sh status --dir "$dir" | awk '$1 == "routerd" {print $4}')
    python3 tests/bench/load.py serve "$url" --ttft 4096 --concurrency 1 --repeat 9 >/dev/null
}
have() { [[ " ${PEERS-llama vllm} " == *" $1 "* ]] && [ -e "$2" ]; }

serve_filter='[("TTFT of %s tokens, ms" % n, v) for n, v in d["ttft_ms"].items()] +
    [("%s clients, output tok/s" % n, v["out_tok_s"]) for n, v in d["concurrency"].items()]'

# One server at a time, since idle ones may still poll; the rounds take turns.
serve() {
    local i
    for ((i = 0; i < ${RUNS:-2}; i++)); do
        if have vllm "$peers/models/hf/done" && start_vllm; then
            python3 tests/bench/load.py serve "$url" ${LOAD:-} | record vLLM serve "$serve_filter"
        fi
        stop_peers
        start_baton default
        python3 tests/bench/load.py serve "$url" ${LOAD:-} | record "baton, Q4_1" serve "$serve_filter"
        stop_all
        start_baton bf16 --set weights=bf16
        python3 tests/bench/load.py serve "$url" ${LOAD:-} | record "baton, bf16" serve "$serve_filter"
        stop_all
    done
}
interfere_filter='[(k, v) for k, v in d.items()]'
interfere() {
    local i load=(python3 tests/bench/load.py interfere)
    if have vllm "$peers/models/hf/done" && start_vllm --max-num-batched-tokens 512; then
        "${load[@]}" "$url" --repeat 1 ${LOAD:-} | record "vLLM, 512 batched tokens" interfere "$interfere_filter"
    fi
    stop_peers
    if have llama "$peers/llama-build/done" && start_llama Q4_1; then
        "${load[@]}" "$url" --repeat 1 ${LOAD:-} | record "llama.cpp, Q4_1" interfere "$interfere_filter"
    fi
    stop_peers
    for ((i = 0; i < ${RUNS:-2}; i++)); do
        start_baton helpers
        "${load[@]}" "$url" --repeat 1 ${LOAD:-} | record "baton, one thread each and helpers" interfere "$interfere_filter"
        stop_all
        start_baton plain --set helpers=0
        "${load[@]}" "$url" --repeat 1 ${LOAD:-} | record "baton, one thread each" interfere "$interfere_filter"
        stop_all
        start_baton all --threads "$(nproc)" --set helpers=0
        "${load[@]}" "$url" --repeat 1 ${LOAD:-} | record "baton, all cores each" interfere "$interfere_filter"
        stop_all
    done
}

# Medians by label and what; ratios of the first baton to each peer, for times the other way round.
report() {
    [ -s "$results" ] || { say "nothing was measured"; return; }
    python3 - "$results" <<'PY'
import collections, json, statistics, sys
values = collections.defaultdict(list)
for line in open(sys.argv[1]):
    d = json.loads(line)
    values[d["label"], d["what"], d["who"]].append(d["value"])
for label in dict.fromkeys(k[0] for k in values):
    who = list(dict.fromkeys(k[2] for k in values if k[0] == label))
    ours = [w for w in who if w.startswith("baton")]
    theirs = [w for w in who if not w.startswith("baton")]
    print(f"\n{label}\n| | {' | '.join(theirs + ours)} | ratio |\n|---{'|---' * len(who)}|---|")
    for what in dict.fromkeys(k[1] for k in values if k[0] == label):
        middle = {w: statistics.median(values[label, what, w]) for w in who if (label, what, w) in values}
        cells = [f"{middle[w]:,.0f}" if middle.get(w, 0) >= 100 else f"{middle[w]:,.1f}" if w in middle else ""
                 for w in theirs + ours]
        ratios = [f"{middle[o] / middle[t] if 'tok' in what and 'ms' not in what else middle[t] / middle[o]:.2f}"
                  for t in theirs for o in ours if t in middle and o in middle and middle[t] and middle[o]]
        print(f"| {what} | {' | '.join(cells)} | {', '.join(ratios)} |")
PY
}

mkdir -p "$(dirname "$results")"
[ $# -gt 0 ] || set -- install engine serve interfere report
for part; do
    case $part in
    install)
        for what in llama vllm models; do
            tests/bench/peers.sh $what || say "goes on without $what"
        done ;;
    engine | serve | interfere | report) "$part" ;;
    *)
        sed -n '2,/^set/{/^set\|shellcheck/!s/^# \{0,1\}//p}' "$0"
        exit 2 ;;
    esac
done
