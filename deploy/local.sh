#!/usr/bin/env bash
# A cluster on this machine: one routerd and any number of workers on loopback.
#
#   deploy/local.sh start [OPTIONS]      start it; returns when it answers, or says why it does not
#   deploy/local.sh stop                 stop it; leaves no process
#   deploy/local.sh restart [OPTIONS]    stop, then start with the options of last time and OPTIONS
#   deploy/local.sh status               one line per process: name pid state address
#   deploy/local.sh start|stop|restart NAME [--port N | --dir STATE]
#                                        one process (routerd, prefilld-1, ...), on its old address
#
# OPTIONS
#   --model PATH     a GGUF file or a model directory (default: the one deploy/fetch_model.sh fetches)
#   --port N         where routerd listens (8080; 0 takes a free one, then --dir is needed)
#   --prefill N      prefill workers (1)          --decode N    decode workers (1)
#   --threads T      compute threads of each worker (the cores, shared out evenly)
#   --dir STATE      where state and logs live (${XDG_RUNTIME_DIR:-/tmp}/baton-UID/PORT)
#   --set [routerd.|prefilld.|decoded.]KEY=VALUE
#                    a setting, for one kind of daemon or for each that has the key; repeatable
#
# STATE holds for each process NAME.conf (what it was started with), NAME.log and NAME.pid;
# `cluster`, one line "name listen http" for each (routerd's has its admin_listen behind that); and
# `options`, for restart. Clusters with different ports and states run side by side. The address that status prints serves /health,
# /ready and /metrics. Programs come from $BATON_BIN, else from $B/bin (build/bin).
# A cluster with an api_key_file is waited for more exactly when BATON_API_KEY holds a key of it.
# BATON_START_S (120) and BATON_STOP_S (10) are how many seconds start and stop may take.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${B:-build}
case $build in /*) ;; *) build=$root/$build ;; esac
bin=${BATON_BIN:-$build/bin}
base=${XDG_RUNTIME_DIR:-/tmp}/baton-$(id -u)

say() { echo "local.sh: $*" >&2; }
die() {
    say "$*"
    exit 1
}
usage() {
    sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit "$1"
}

# ---- processes ----

kind_of() { echo "${1%-[0-9]*}"; } # prefilld-2 -> prefilld

# NAME.pid holds the pid and the start time of the process, so that another process that got the
# same pid later is not taken for ours. A zombie is dead.
start_time() { # PID
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    set -- ${stat##*) } # the fields after "(command)": the first is the state, field 3 of all
    [ "$1" != Z ] && [ "$1" != X ] && echo "${20}"
}
pid_of() { # NAME: prints the pid of the living process
    local pid since
    read -r pid since 2>/dev/null <"$state/$1.pid" || return 1
    [ "$(start_time "$pid")" = "$since" ] && echo "$pid"
}

# A killed process whose first thread is gone holds its sockets until the other threads are gone, too.
wait_sockets() { # NAME
    local pid tasks
    read -r pid _ 2>/dev/null <"$state/$1.pid" || return 0
    for _ in {1..500}; do
        tasks=(/proc/"$pid"/task/*)
        [ ${#tasks[@]} -gt 1 ] || return 0
        [ "$(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>/dev/null)" = Z ] || return 0
        sleep 0.01
    done
}

# The programs see no setting of this shell's environment that their file has: the file is what was
# asked for, and the environment would win over it.
launch() { # NAME
    local name=$1 key unset=()
    while read -r key; do unset+=(-u "BATON_${key^^}"); done < <(
        sed -n 's/^\([a-z0-9_]*\) = .*/\1/p' "$state/$name.conf"
    )
    stat -c %s "$state/$name.log" >"$state/$name.mark" 2>/dev/null || echo 0 >"$state/$name.mark"
    env "${unset[@]}" setsid "$bin/$(kind_of "$name")" -c "$state/$name.conf" \
        </dev/null >>"$state/$name.log" 2>&1 9>&- &
    echo "$! $(start_time $! || echo 0)" >"$state/$name.pid"
    disown
}

signal() { # SIGNAL NAME...
    local sig=$1 name pid
    shift
    for name; do
        pid=$(pid_of "$name") && kill "-$sig" "$pid" 2>/dev/null || true
    done
}
# Waits until none of the processes lives, at most so many tenths of a second.
wait_gone() { # TENTHS NAME...
    local tenths=$1 name i
    shift
    for ((i = 0; i <= tenths; i++)); do
        for name; do pid_of "$name" >/dev/null && break; done || return 0
        sleep 0.1
    done
    return 1
}
# The router first, so that it can finish its answers while the workers still work.
stop_processes() { # NAME...
    local name router=() workers=() half=$((${BATON_STOP_S:-10} * 5))
    for name; do
        if [ "$name" = routerd ]; then router+=("$name"); else workers+=("$name"); fi
    done
    if [ ${#router[@]} != 0 ]; then
        signal TERM routerd
        signal CONT routerd
        wait_gone "$half" routerd || signal TERM routerd # a second one ends it at once
    fi
    signal TERM "${workers[@]}"
    signal CONT "${workers[@]}"
    if ! wait_gone "$half" "$@"; then
        for name; do
            pid_of "$name" >/dev/null && say "$name does not stop: killed"
        done
        signal KILL "$@"
        wait_gone 50 "$@" || die "some process cannot be killed"
    fi
    for name; do rm -f "$state/$name.pid"; done
}

# ---- what the daemons say of themselves ----

address_of() { awk -v name="$1" '$1 == name {print $3}' "$state/cluster"; }
listen_of() { awk -v name="$1" '$1 == name {print $2}' "$state/cluster"; }
names() { awk '{print $1}' "$state/cluster"; }

ready() { # NAME: prints the status of /ready (000: no answer)
    curl -s -o /dev/null -w '%{http_code}' --noproxy '*' --max-time 2 "http://$(address_of "$1")/ready" || true
}
state_of() { # NAME
    if ! pid_of "$1" >/dev/null; then
        if [ -e "$state/$1.pid" ]; then echo dead; else echo stopped; fi
        return
    fi
    case $(ready "$1") in
    200) echo ready ;;
    000) if [ -e "$state/$1.up" ]; then echo silent; else echo starting; fi ;;
    *) if [ -e "$state/$1.up" ]; then echo unready; else echo starting; fi ;;
    esac
}
show_log() { # NAME: what it logged since it was launched, at most the last lines
    say "the last lines of $state/$1.log:"
    tail -c "+$(($(cat "$state/$1.mark") + 1))" "$state/$1.log" | tail -n 15 | sed 's/^/  | /' >&2
}

# Waits until every process is ready; says what went wrong otherwise.
wait_ready() { # NAME...
    local name waiting=("$@") still limit=$((SECONDS + ${BATON_START_S:-120}))
    while :; do
        still=()
        for name in "${waiting[@]}"; do
            if ! pid_of "$name" >/dev/null; then
                say "$name ended while it was starting"
                show_log "$name"
                return 1
            fi
            if [ "$(ready "$name")" = 200 ]; then : >"$state/$name.up"; else still+=("$name"); fi
        done
        [ ${#still[@]} != 0 ] || return 0
        waiting=("${still[@]}")
        if [ $SECONDS -ge $limit ]; then
            for name in "${waiting[@]}"; do
                say "$name is not ready after ${BATON_START_S:-120} s:" \
                    "$(curl -s --noproxy '*' --max-time 2 "http://$(address_of "$name")/ready" || echo 'no answer')"
                show_log "$name"
            done
            return 1
        fi
        sleep 0.05
    done
}

# Waits until the router's page has the metrics of these workers: then it has its link to each, and
# a request may go to any of them. Workers that it was not told of do not count.
wait_linked() { # NAME...
    local name page left limit=$((SECONDS + 20))
    if ! pid_of routerd >/dev/null; then return 0; fi
    while :; do
        left=
        page=$(curl -s --noproxy '*' --max-time 2 -H "Authorization: Bearer ${BATON_API_KEY:-}" \
            "http://$(address_of routerd)/metrics" || true)
        [[ $page != *invalid_api_key* ]] || return 0
        for name; do
            [ "$name" != routerd ] || continue
            grep -qE "^(prefill|decode) = .*$(listen_of "$name")(,|$)" "$state/routerd.conf" || continue
            grep -q "^baton_kv_blocks{.*worker=\"$name\"" <<<"$page" || left+=" $name"
        done
        [ -n "$left" ] || return 0
        if [ $SECONDS -ge $limit ]; then
            say "routerd has no link to$left"
            show_log routerd
            return 1
        fi
        sleep 0.05
    done
}

# ---- ports ----

# $base has a name that anyone could guess and take in /tmp: it must be ours.
make_base() {
    mkdir -p -m 700 "$base"
    [ -O "$base" ] || die "$base belongs to somebody else"
}

# Ports on which somebody listens, as hexadecimal numbers from the kernel's tables.
listening() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk '$4 == "0A" {n = split($2, part, ":"); print part[n]}'
}
port_free() { ! listening | grep -qix "$(printf '%04X' "$1")"; }

# Prints N ports that are free. They lie below the range from which the kernel takes ports for
# outgoing connections, so that a stopped worker finds its port free when it comes back; and those
# given out in the last minutes are left alone, because another cluster may be about to use them.
pick_ports() { # N
    local low high port found=0 tries=0
    read -r high _ </proc/sys/net/ipv4/ip_local_port_range
    low=20000
    if [ "$high" -lt 24000 ]; then low=1100; fi
    make_base
    (
        flock 8
        touch "$base/ports"
        awk -v now="$(date +%s)" 'now - $2 < 300' "$base/ports" >"$base/ports.new"
        while [ $found -lt "$1" ]; do
            [ $((tries++)) -lt 10000 ] || die "no free ports"
            port=$((low + (RANDOM * 32768 + RANDOM) % (high - low)))
            if port_free $port && ! grep -q "^$port " "$base/ports.new"; then
                echo "$port $(date +%s)" >>"$base/ports.new"
                echo "$port"
                found=$((found + 1))
            fi
        done
        mv -f "$base/ports.new" "$base/ports"
    ) 8>"$base/ports.lock"
}

# ---- options and configuration files ----

# Fills the variables below from the options; each time from the start, so that restart can put
# new options after those of last time.
parse_options() {
    model='' port=8080 prefill=1 decode=1 threads='' dir='' sets=()
    while [ $# != 0 ]; do
        case $1 in
        --model | --port | --prefill | --decode | --threads | --dir | --set) ;;
        *) die "unknown option $1 (see --help)" ;;
        esac
        [ $# -ge 2 ] || die "$1 needs a value"
        case $1 in
        --set)
            [[ $2 == *=* ]] || die "--set $2: not of the form key=value"
            sets+=("$2") ;;
        --model) model=$2 ;;
        --dir) dir=$2 ;;
        *)
            [[ $2 =~ ^[0-9]{1,5}$ ]] || die "$1 $2: not a number"
            printf -v "${1#--}" %d "$((10#$2))" ;;
        esac
        shift 2
    done
    [ "$port" -le 65535 ] || die "--port $port: at most 65535"
    [ "$port" != 0 ] || [ -n "$dir" ] || die "--port 0 needs --dir"
    [ "$prefill" -ge 1 ] && [ "$prefill" -le 99 ] || die "--prefill $prefill: 1 to 99"
    [ "$decode" -ge 1 ] && [ "$decode" -le 99 ] || die "--decode $decode: 1 to 99"
    [ -z "$threads" ] || [ "$threads" -ge 1 ] || die "--threads 0: at least 1"
    state=${dir:-$base/$port}
    state=$(realpath -m "$state")
}

# The settings of one daemon, as an associative array "conf" of the caller.
apply_sets() { # KIND
    local set key value known=$keys_of_all
    for set in "${sets[@]}"; do
        key=${set%%=*} value=${set#*=}
        case $key in
        *.*)
            [ "${key%%.*}" = "$1" ] || continue
            key=${key#*.} ;;
        *)
            grep -qx "$1 ${key//-/_}" <<<"$known" || continue ;;
        esac
        conf[${key//-/_}]=$value
    done
}
# Every --set must name a key that a daemon has, and none that this script looks after.
check_sets() {
    local set key kind
    for set in "${sets[@]}"; do
        key=${set%%=*} kind=''
        if [[ $key == *.* ]]; then
            kind=${key%%.*} key=${key#*.}
            case $kind in
            routerd | prefilld | decoded) ;;
            *) die "--set $set: there is no daemon $kind" ;;
            esac
        fi
        key=${key//-/_}
        grep -qx "${kind:-[a-z]*} $key" <<<"$keys_of_all" ||
            die "--set $set: ${kind:-every daemon} lacks the setting $key"
        case $key in
        name | listen | http | admin_listen) die "--set $set: addresses and names are chosen by local.sh (see --port)" ;;
        esac
    done
}

write_conf() { # NAME, from the array conf
    local key
    {
        echo "# Written by deploy/local.sh; replaced by the next start."
        for key in $(printf '%s\n' "${!conf[@]}" | sort); do
            echo "$key = ${conf[$key]}"
        done
    } >"$state/$1.conf"
    "$bin/$(kind_of "$1")" -c "$state/$1.conf" --check-config >/dev/null || die "$1: bad settings"
}

# Decides who listens where, and writes `cluster` and the configuration files.
configure() {
    local name kind i ports admin threads_each helpers_each
    for kind in routerd prefilld decoded; do
        [ -x "$bin/$kind" ] || die "there is no $bin/$kind (make builds it)"
    done
    keys_of_all=$(for kind in routerd prefilld decoded; do
        "$bin/$kind" --print-config | sed -n "s/^\([a-z0-9_]*\) =.*/$kind \1/p" || exit 1
    done)
    check_sets
    if [ -z "$model" ]; then
        model=$("$root/deploy/fetch_model.sh") || die "there is no model"
    fi
    [ -e "$model" ] || die "--model $model: no such file"
    model=$(realpath "$model")
    threads_each=${threads:-$(($(nproc) / (prefill + decode)))}
    [ "$threads_each" -ge 1 ] || threads_each=1
    helpers_each=$(($(nproc) > threads_each ? $(nproc) - threads_each : 0)) # what the others leave idle

    local workers=()
    for ((i = 1; i <= prefill; i++)); do workers+=("prefilld-$i"); done
    for ((i = 1; i <= decode; i++)); do workers+=("decoded-$i"); done
    # Addresses of last time stay, where they are still free.
    if [ "$port" = 0 ]; then
        port=$(awk '$1 == "routerd" {sub(/.*:/, "", $2); print $2}' "$state/cluster" 2>/dev/null || true)
        [ -n "$port" ] && port_free "$port" || port=$(pick_ports 1)
    fi
    port_free "$port" || die "port $port is in use: something else listens there (choose another --port)"
    for name in "${workers[@]}"; do
        read -r _ listen http <<<"$(grep "^$name " "$state/cluster" 2>/dev/null || true)"
        if [ -z "${http:-}" ] || ! port_free "${listen##*:}" || ! port_free "${http##*:}"; then
            mapfile -t ports < <(pick_ports 2)
            [ ${#ports[@]} = 2 ] || exit 1
            listen=127.0.0.1:${ports[0]} http=127.0.0.1:${ports[1]}
        fi
        echo "$name $listen $http"
    done >"$state/cluster.workers"
    admin=$(awk '$1 == "routerd" {sub(/.*:/, "", $4); print $4}' "$state/cluster" 2>/dev/null || true)
    [ -n "$admin" ] && port_free "$admin" || admin=$(pick_ports 1)
    { echo "routerd 127.0.0.1:$port 127.0.0.1:$port 127.0.0.1:$admin" && cat "$state/cluster.workers"; } >"$state/cluster.new"
    rm "$state/cluster.workers"
    mv "$state/cluster.new" "$state/cluster"

    addresses() { awk -v kind="$1-" 'index($1, kind) == 1 {print $2}' "$state/cluster" | paste -sd,; }
    declare -A conf=([name]=routerd [listen]=127.0.0.1:$port [admin_listen]=127.0.0.1:$admin [model]=$model
        [prefill]=$(addresses prefilld) [decode]=$(addresses decoded))
    apply_sets routerd
    write_conf routerd
    while read -r name listen http; do
        [ "$name" != routerd ] || continue
        conf=([name]=$name [listen]=$listen [http]=$http [model]=$model [threads]=$threads_each
            [helpers]=$helpers_each)
        apply_sets "$(kind_of "$name")"
        write_conf "$name"
    done <"$state/cluster"
}

# ---- commands ----

known_name() { grep -q "^$1 " "$state/cluster" 2>/dev/null || die "there is no $1 in $state"; }
any_alive() {
    local name
    [ -e "$state/cluster" ] || return 1
    for name in $(names); do
        if pid_of "$name" >/dev/null; then return 0; fi
    done
    return 1
}
lock() {
    [ -n "$dir" ] || make_base
    mkdir -p "$state"
    exec 9>"$state/lock"
    flock -w 300 9 || die "another local.sh is busy with $state"
}

start_all() {
    local started=$EPOCHREALTIME name
    any_alive && die "already running in $state (see status)"
    configure
    printf '%s\n' "${options[@]}" >"$state/options"
    mapfile -t all < <(names)
    trap 'stop_processes "${all[@]}"; exit 130' INT TERM HUP
    for name in "${all[@]:1}" routerd; do
        rm -f "$state/$name.up"
        launch "$name"
    done
    if ! wait_ready "${all[@]:1}" routerd || ! wait_linked "${all[@]:1}"; then
        stop_processes "${all[@]}"
        exit 1
    fi
    trap - INT TERM HUP
    awk -v a="$started" -v b="$EPOCHREALTIME" -v port="$port" -v p="$prefill" -v d="$decode" 'BEGIN {
        printf "ready after %.1f s: http://127.0.0.1:%d (routerd, %d prefilld, %d decoded)\n", b - a, port, p, d }'
}
start_one() { # NAME
    local name
    known_name "$1"
    pid_of "$1" >/dev/null && die "$1 is running already"
    wait_sockets "$1"
    rm -f "$state/$1.up"
    launch "$1"
    local workers=("$1")
    [ "$1" != routerd ] || mapfile -t workers < <(names)
    if ! wait_ready "$1"; then
        stop_processes "$1"
        exit 1
    fi
    # The other workers may be down, and that is not this one's fault.
    for name in "${workers[@]}"; do
        if [ "$(state_of "$name")" = ready ]; then wait_linked "$name" || true; fi
    done
    echo "$1 is ready: $(address_of "$1")"
}
stop_all() {
    [ -e "$state/cluster" ] || return 0
    mapfile -t all < <(names)
    stop_processes "${all[@]}"
}
status() {
    local name
    [ -e "$state/cluster" ] || die "there is no cluster in $state"
    for name in $(names); do
        # A process that is gone keeps the pid it had; one that was stopped has none.
        local pid=-
        read -r pid _ 2>/dev/null <"$state/$name.pid" || true
        echo "$name $pid $(state_of "$name") $(address_of "$name")"
    done
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
start | stop | restart | status) ;;
-h | --help | help) usage 0 ;;
*) usage 2 >&2 ;;
esac
one=''
if [ $# != 0 ] && [[ $1 != --* ]]; then
    one=$1
    shift
    [ "$command" != status ] || die "status takes no name"
fi
options=("$@")
parse_options "$@"

case $command$one in
status) status ;;
start)
    lock
    start_all ;;
stop)
    if [ -e "$state" ]; then lock && stop_all; fi ;;
restart)
    lock
    stop_all
    if [ -e "$state/options" ]; then
        mapfile -t options <"$state/options"
        options+=("$@")
        [ -n "${options[0]:-}" ] || options=("$@")
        parse_options "${options[@]}"
    fi
    start_all ;;
*)
    known_name "$one"
    lock
    case $command in
    start) start_one "$one" ;;
    stop) stop_processes "$one" ;;
    restart)
        stop_processes "$one"
        start_one "$one" ;;
    esac ;;
esac
