#!/usr/bin/env bash
# The manual page of a daemon, section 8. Its settings come from the program itself (--print-config), so
# that they cannot be out of date.
#
#   deploy/man.sh build/bin/routerd
set -euo pipefail
program=$1
name=${program##*/}
case $name in
routerd) what='OpenAI-compatible router of a Baton cluster'
    text='accepts requests of the OpenAI API, hands each to a prefill worker and a decode worker, and streams the
answer. It keeps no state beyond the requests that run; any number of routers may serve the same workers.' ;;
prefilld) what='prefill worker of a Baton cluster'
    text='computes prompts and sends their KV cache, layer by layer, to decode workers.' ;;
decoded) what='decode worker of a Baton cluster'
    text='takes sequences over from prefill workers and generates their tokens in one running batch.' ;;
*)
    echo "man.sh: $name has no manual page" >&2
    exit 1 ;;
esac
version=$("$program" --version | cut -d' ' -f2)
cat <<END
.TH ${name^^} 8 "" "Baton $version" "Baton"
.SH NAME
$name \- $what
.SH SYNOPSIS
.B $name
.RB [ \-c
.IR FILE ]
.RB [ \-\-KEY
.IR VALUE ]...
.br
.B $name
.RB [ \-\-check\-config | \-\-print\-config | \-\-help | \-\-version ]
.SH DESCRIPTION
.B $name
$text
.SH OPTIONS
.TP
.BI "\-c, \-\-config " FILE
Read settings from
.IR FILE .
.TP
.B \-\-check\-config
Exit with 0 when the settings are valid, else say why not, with file and line.
.TP
.B \-\-print\-config
Show every setting with its current value, as a commented file.
.TP
.BI \-\-KEY " VALUE"
Any setting below; underscores and dashes are the same.
.SH SETTINGS
As
.I KEY = VALUE
in the file, as
.I BATON_KEY
in the environment, or as
.I \-\-KEY VALUE
on the command line, which wins over the environment, which wins over the file.
END
# "# help", "# Default: ...", "key = value" -> an entry
env -i "$program" --print-config | awk '
    /^# / { text = text (text == "" ? "" : "\n") substr($0, 3); next }
    /^[a-z0-9_]+ =/ {
        gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); gsub(/(^|\n)[.\x27]/, "\n\\\\\\&.", text)
        printf ".TP\n.B %s\n%s\n", $1, text
        text = ""
    }'
cat <<END
.SH SIGNALS
.TP
.BR SIGTERM ", " SIGINT
Take nothing new, finish what runs within
.IR drain_ms ,
end. A second one ends at once.
.TP
.B SIGHUP
Read the settings again; all that changed is applied, or nothing and the log says why.
.SH ENVIRONMENT
.B NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS, CREDENTIALS_DIRECTORY
and
.B JOURNAL_STREAM
are those of
.BR systemd.exec (5).
The credentials
.IR baton.cluster_key ", " baton.api_keys ", " baton.tls_cert
and
.I baton.tls_key
stand in for
.IR cluster_key_file ", " api_key_file ", " tls_cert_file
and
.IR tls_key_file .
.SH FILES
.I /etc/baton/$name.conf
.SH EXIT STATUS
0 after a clean end, 1 otherwise; one line on standard error says why.
.SH SEE ALSO
$(for p in routerd prefilld decoded; do [ $p = "$name" ] || printf '.BR %s (8),\n' $p; done)
.BR systemctl (1),
/usr/local/share/doc/baton
END
