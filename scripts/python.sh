#!/usr/bin/env bash
# The project's Python, from any folder: python.sh -m MODULE ARGUMENT...
#   PYTHON   the interpreter (default: the project's own environment if it exists, else python3); the
#            flag --python of a training overrides it
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
  python=python3
  [[ ! -x "$root/.venv/bin/python" ]] || python="$root/.venv/bin/python"
fi

arguments=("$@")
while [[ $# -gt 1 && $1 != -- ]]; do
  [[ $1 != --python ]] || python=$2
  shift
done

PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "${arguments[@]}"
