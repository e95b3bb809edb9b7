#!/usr/bin/env bash
# Installs what Baton needs and this machine lacks: Debian 12 or 13, Ubuntu 24.04.
#
#   deploy/setup.sh            what it takes to build and run
#   deploy/setup.sh --tests    also what tests use (promtool; beside nvcc: disassemblers, into the cache)
#   deploy/setup.sh --fmt      also clang-format        --tidy   also clang-tidy
#   deploy/setup.sh --quick    the same, but silent and fast when everything is there (for make)
#
# Needs root. Without it, when something is missing, it prints the one command to run and exits 1.
# Packages come from the sources apt already knows, and from the package index pip already knows.
set -euo pipefail

# what pkg-config calls it, and the package that has it
LIBRARIES='libuv:libuv1-dev jansson:libjansson-dev ucx:libucx-dev inih:libinih-dev
  libpcre2-8:libpcre2-dev libutf8proc:libutf8proc-dev libxxhash:libxxhash-dev openssl:libssl-dev
  check:check'
# a command, and the package that has it
COMMANDS='gcc:gcc make:make git:git curl:curl python3:python3 setsid:util-linux'
PREFIX=/usr/local # of what no package provides
CUDA_TOOLS='nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37' # they read older code too
cache=${BATON_CACHE:-${HOME:-/root}/.cache/baton}
export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}

say() { [ -n "$quick" ] || echo "setup: $*" >&2; }
die() {
    echo "setup: $*" >&2
    exit 1
}

# ---- what is missing ----

has_header() { # FILE: does the compiler find it?
    [ -e "/usr/include/$1" ] || [ -e "$PREFIX/include/$1" ] ||
        echo "#include <$1>" | gcc -E -x c - >/dev/null 2>&1
}
has_msgpack() { pkg-config --exists msgpack-c || pkg-config --exists msgpack; } 2>/dev/null
has_llhttp() { pkg-config --exists libllhttp 2>/dev/null; }
# Debian splits venv and pip off; any other Python comes with both. (Asking Python itself is slow.)
has_venv() {
    case $(command -v python3) in
    '' | /usr/bin/python3) compgen -G '/usr/lib/python3*/ensurepip/__init__.py' >/dev/null ;;
    esac
}

# Prints the names of the packages that are missing, one a line.
missing() {
    local entry all=
    for entry in $COMMANDS; do
        command -v "${entry%%:*}" >/dev/null || echo "${entry#*:}"
    done
    if ! command -v pkg-config >/dev/null; then
        echo pkg-config
        for entry in $LIBRARIES; do echo "${entry#*:}"; done
    else
        for entry in $LIBRARIES; do all+=" ${entry%%:*}"; done
        # shellcheck disable=SC2086 # one call for all is what makes --quick quick
        if ! pkg-config --exists $all 2>/dev/null; then
            for entry in $LIBRARIES; do
                pkg-config --exists "${entry%%:*}" 2>/dev/null || echo "${entry#*:}"
            done
        fi
    fi
    has_header uthash.h || echo uthash-dev
    has_header stdlib.h || echo libc6-dev
    has_msgpack || echo libmsgpack
    has_llhttp || echo llhttp
    has_venv || printf '%s\n' python3-venv python3-pip
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    [ -z "$with_tests" ] || command -v promtool >/dev/null || echo promtool
    [ -z "$with_fmt" ] || command -v clang-format >/dev/null || echo clang-format
    [ -z "$with_tidy" ] || command -v clang-tidy >/dev/null || echo clang-tidy
}

# ---- how to get it ----

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >/dev/null; }
has_candidate() {
    [ -n "$(apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ && $2 != "(none)"')" ]
}

# llhttp is a package of Debian 13 and of later Ubuntus. Debian 12 takes the two packages of Debian
# 13 from its own mirror: they ask for no newer libc. apt works on a private state for that, so that
# the system's own package lists never see the other release.
llhttp_from_trixie() (
    . /etc/os-release
    [ "${ID:-}" = debian ] || return 1
    mirror=$(apt-get indextargets --format '$(CREATED_BY) $(CODENAME) $(COMPONENT) $(REPO_URI)' |
        awk -v release="$VERSION_CODENAME" \
            '$1 == "Packages" && $2 == release && $3 == "main" {print $4; exit}')
    [ -n "$mirror" ] || return 1
    d=$tmp/trixie
    mkdir -p "$d/lists/partial" "$d/cache/archives/partial" "$d/none"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" \
        >"$d/trixie.list"
    private=(-o Dir::Etc::SourceList="$d/trixie.list" -o Dir::Etc::SourceParts="$d/none"
        -o Dir::State::Lists="$d/lists" -o Dir::Cache="$d/cache"
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts="$d/none"
        -o Acquire::Languages=none -o APT::Sandbox::User=root)
    apt "${private[@]}" update || return 1
    library=$(apt-cache "${private[@]}" depends libllhttp-dev |
        awk '/Depends: libllhttp[0-9]/ {print $2; exit}')
    [ -n "$library" ] || return 1
    cd "$d"
    apt "${private[@]}" download libllhttp-dev "$library" || return 1
    dpkg -i ./*.deb >&2
)

# Elsewhere: its C sources, as the source distribution of Python's httptools carries them.
llhttp_from_httptools() (
    d=$tmp/httptools
    python3 -m venv "$d/venv" >&2
    "$d/venv/bin/pip" -q download --no-deps --no-binary httptools -d "$d" httptools >&2 || return 1
    tar xzf "$d"/httptools-*.tar.gz -C "$d"
    source=$(echo "$d"/httptools-*/vendor/llhttp)
    [ -f "$source/include/llhttp.h" ] || return 1
    version=$(awk '/#define LLHTTP_VERSION_(MAJOR|MINOR|PATCH)/ {printf "%s%s", dot, $3; dot = "."}' \
        "$source/include/llhttp.h")
    cd "$d"
    gcc -O2 -fPIC -I"$source/include" -c "$source"/src/api.c "$source"/src/http.c \
        "$source"/src/llhttp.c
    ar rcs libllhttp.a api.o http.o llhttp.o
    install -D -m644 "$source/include/llhttp.h" "$PREFIX/include/llhttp.h"
    install -D -m644 libllhttp.a "$PREFIX/lib/libllhttp.a"
    cat >libllhttp.pc <<PC
Name: libllhttp
Description: HTTP parser
Version: $version
Cflags: -I$PREFIX/include
Libs: -L$PREFIX/lib -lllhttp
PC
    install -D -m644 libllhttp.pc "$PREFIX/lib/pkgconfig/libllhttp.pc"
)

get_llhttp() {
    if has_candidate libllhttp-dev; then
        apt install --no-install-recommends libllhttp-dev
    else
        llhttp_from_trixie || llhttp_from_httptools
    fi
    has_llhttp || die "llhttp could not be installed"
}

# A package of its own in Debian 13. Elsewhere it is taken out of the prometheus package, whose
# service nobody asked for.
get_promtool() (
    if has_candidate promtool; then
        apt install --no-install-recommends promtool
        exit
    fi
    cd "$tmp"
    apt -o APT::Sandbox::User=root download prometheus
    dpkg-deb --fsys-tarfile prometheus_*.deb | tar x ./usr/bin/promtool
    install -D -m755 usr/bin/promtool "$PREFIX/bin/promtool"
)

# Where nvcc is, tests look into what it made (tests/cuda_emu/sass.sh). Toolkits often come without
# these two. Needs no root; without a network the tests say what they had to leave out.
has_cuda_tools() {
    ! command -v nvcc >/dev/null || [ "${BATON_OFFLINE:-}" = 1 ] ||
        [ "$(cat "$cache/cuda-tools/packages" 2>/dev/null)" = "$CUDA_TOOLS" ] ||
        { command -v cuobjdump && command -v nvdisasm; } >/dev/null
}
get_cuda_tools() (
    echo "setup: fetching cuobjdump and nvdisasm (6 MB) into $cache/cuda-tools" >&2
    d=$(mktemp -d)
    trap 'rm -rf "$d"' EXIT
    python3 -m venv "$d/venv" >&2 || return 1
    # shellcheck disable=SC2086 # two packages
    "$d/venv/bin/pip" -q --disable-pip-version-check install --retries 2 --no-deps --target "$d/tools" \
        $CUDA_TOOLS >&2 || return 1
    echo "$CUDA_TOOLS" >"$d/tools/packages"
    mkdir -p "$cache"
    rm -rf "$cache/cuda-tools"
    mv "$d/tools" "$cache/cuda-tools"
)

install_all() { # NAME...
    local name packages=()
    [ -e /etc/debian_version ] || die "cannot install on this system; missing here: $*"
    say "installing $*"
    apt update || die "apt-get update failed"
    for name; do
        case $name in
        llhttp | promtool) ;;
        libmsgpack)
            if has_candidate libmsgpack-c-dev; then
                packages+=(libmsgpack-c-dev)
            else
                packages+=(libmsgpack-dev)
            fi ;;
        *) packages+=("$name") ;;
        esac
    done
    if [ ${#packages[@]} != 0 ]; then
        apt install --no-install-recommends "${packages[@]}" || die "apt-get install failed"
    fi
    case " $* " in *' llhttp '*) get_llhttp ;; esac
    case " $* " in *' promtool '*)
        get_promtool || echo "setup: no promtool; tests that need it are skipped" >&2 ;;
    esac
}

# ---- main ----

quick='' with_tests='' with_fmt='' with_tidy='' flags=''
for arg; do
    case $arg in
    --quick) quick=1 ;;
    --tests) with_tests=1 flags+=" $arg" ;;
    --fmt) with_fmt=1 flags+=" $arg" ;;
    --tidy) with_tidy=1 flags+=" $arg" ;;
    -h | --help)
        sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
        exit 0 ;;
    *) die "unknown option $arg (see --help)" ;;
    esac
done

mapfile -t lacking < <(missing)
case " ${lacking[*]} " in
*' python3'*) ;; # first that, then the rest
*)
    if [ -n "$with_tests" ] && ! has_cuda_tools; then
        get_cuda_tools || echo "setup: no cuobjdump and nvdisasm; tests that need them are skipped" >&2
    fi ;;
esac
if [ ${#lacking[@]} = 0 ]; then
    say "everything is here"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    if [ "${lacking[*]}" = promtool ]; then
        # Tests that need it skip themselves by name: no reason to stop a build.
        [ -n "$quick" ] || echo "setup: promtool is missing; to install it: sudo $0$flags" >&2
        [ -n "$quick" ]
        exit
    fi
    echo "setup: missing: ${lacking[*]}" >&2
    echo "sudo $0$flags" >&2
    exit 1
fi
quick='' # from here on it takes a while, so it talks
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
install_all "${lacking[@]}"
mapfile -t lacking < <(missing)
case "${lacking[*]}" in
'' | promtool) say "done" ;;
*) die "still missing after the installation: ${lacking[*]}" ;;
esac
