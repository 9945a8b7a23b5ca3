# shellcheck shell=bash
# Sourced by the scripts beside it: runs a module of this project from any folder.
#   PYTHON   the interpreter (default: the project's own environment if it exists, else python3)
SPECDEC_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  [[ -x "$SPECDEC_ROOT/.venv/bin/python" ]] && PYTHON="$SPECDEC_ROOT/.venv/bin/python"
fi

run_module() {
  PYTHONPATH="$SPECDEC_ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m "$@"
}

# choose_python ARGUMENT...: the interpreter that --python names, for scripts that have this flag
choose_python() {
  while [[ $# -gt 1 && $1 != -- ]]; do
    [[ $1 != --python ]] || PYTHON=$2
    shift
  done
}
