#!/usr/bin/env bash
# docs/SETTINGS.md, the reference of all settings, out of the programs themselves (--print-config), as
# `make configs` writes it.
#
#   deploy/settings.sh build/bin
set -euo pipefail
bin=$1

# "# help", "# Default: ...", "key = value" -> a row
table() { # HEADING COMMAND...
    printf '\n## %s\n\n| setting | default and range | SIGHUP | meaning |\n|---|---|---|---|\n' "$1"
    shift
    env -i "$@" | awk '
        /^# Default: / { limits = substr($0, 12); next }
        /^# / { if (limits == "") text = text (text == "" ? "" : " ") substr($0, 3); else limits = limits " " substr($0, 3); next }
        /^[a-z0-9_]+ =/ {
            live = sub(/ ?SIGHUP reloads it\.$/, "", limits) ? "applies" : ""
            sub(/\.$/, "", limits)
            gsub(/\|/, "\\|", text); gsub(/\|/, "\\|", limits)
            printf "| `%s` | %s | %s | %s |\n", $1, limits, live, text
        }
        /^$|^[a-z0-9_]+ =/ { text = limits = "" }'
}

cat <<'END'
# Settings

Every setting of every daemon, written by `make configs` from the tables in the programs. As `key = value` in the file, as
`BATON_KEY` in the environment, or as `--key value` on the command line, which wins over the environment, which wins over the file;
underscores and dashes are the same there. `DAEMON -c FILE --check-config` judges a file,
an unknown key or a bad value is an error with its line. Where the table says so, SIGHUP (`systemctl reload`) applies a change; it applies all
changes or, when one is bad or needs a restart, none.
END
for d in routerd prefilld decoded; do table $d "$bin/$d" --print-config; done
table 'A model beside the one of `routerd.conf` (a file that `models` names)' "$bin/routerd" --print-model-config
