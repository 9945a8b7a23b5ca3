#!/usr/bin/env bash
# The project's Python, from any folder: python.sh -m MODULE ARGUMENT...
#   PYTHON   the interpreter (default: the project's own environment if it exists, else python3)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
  python=python3
  [[ ! -x "$root/.venv/bin/python" ]] || python="$root/.venv/bin/python"
fi

PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$@"
