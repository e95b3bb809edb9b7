#!/usr/bin/env bash
# End-to-end tests with the real daemons and the official OpenAI client. Arguments go to pytest
# (-k name, a file, …).
#   B         build directory with bin/ (default build)
#   SANITIZE  1: time limits are stretched
#   LONG      1: also the tests marked long
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../../deploy/fetch_model.sh" > /dev/null
exec "$here/../pytest.sh" "$here" "$@"
