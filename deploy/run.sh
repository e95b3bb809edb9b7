#!/usr/bin/env bash
# make run: fetches the default model, starts a cluster of three (routerd, prefilld, decoded) on
# loopback, shows how to talk to it and follows the logs until Ctrl-C, which stops all three.
#
#   deploy/run.sh [OPTIONS of deploy/local.sh start]      $PORT: where routerd listens (8080)
set -euo pipefail
cd "$(dirname "$0")/.."

port=${PORT:-8080}
args=(--port "$port" "$@")
while [ $# != 0 ]; do # the last --port and --dir count, as for local.sh
    case $1 in
    --port) port=${2:-} ;;
    --dir) dir=${2:-} ;;
    esac
    shift
done
state=${dir:-${XDG_RUNTIME_DIR:-/tmp}/baton-$(id -u)/$port}

case " ${args[*]} " in
*' --model '*) ;;
*)
    model=$(deploy/fetch_model.sh)
    args+=(--model "$model") ;;
esac

follow='' pause=''
# shellcheck disable=SC2317 # called by trap
finish() {
    trap '' INT TERM HUP
    # shellcheck disable=SC2086 # none, one or two
    kill $follow $pause 2>/dev/null || true
    echo "stopping" >&2
    deploy/local.sh stop --dir "$state"
}
deploy/local.sh start "${args[@]}"
trap finish EXIT
trap 'exit 0' INT TERM HUP
port=$(awk '$1 == "routerd" {sub(/.*:/, "", $2); print $2}' "$state/cluster")

cat <<END

  Baton answers at http://127.0.0.1:$port (OpenAI API). Try, in another terminal:

  curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' -d '{
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "temperature": 0, "stream": true}'

  Logs: $state/*.log     Stop: Ctrl-C

END
mapfile -t logs < <(awk -v dir="$state" '{print dir "/" $1 ".log"}' "$state/cluster")
tail -q -n 3 -F "${logs[@]}" 2>/dev/null &
follow=$!
# Ends by a signal, or when nothing is left to follow.
while state_now=$(deploy/local.sh status --dir "$state") && grep -qvE ' (dead|stopped) ' <<<"$state_now"; do
    sleep 5 &
    pause=$!
    wait $pause || true
done
echo "no process of the cluster is left; its logs are in $state" >&2
exit 1
