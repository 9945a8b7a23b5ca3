#!/usr/bin/env bash
# Build the virtual environment .venv with the versions of constraints.txt. A second run has nothing
# to do; after an interruption the next one continues.
#
# PYTHON           the Python to use; without it 3.12, for which fairseq comes built, then any other
# TORCH_INDEX_URL  the package index to take torch from, where neither pip's own configuration nor
#                  PyTorch's index of CPU builds will do
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly LOG=$VENV/setup.log # its presence marks an environment as made here
readonly STAMP=$VENV/setup.stamp
readonly KERNELS=specdec_plugins/decoding/networks/cpu
readonly CPU_INDEX=https://download.pytorch.org/whl/cpu
readonly HELP="install a C++ compiler and Python's headers (on Debian and Ubuntu: apt-get install g++ \
python3-dev), and run the same command again"
readonly PIP=(.venv/bin/python -m pip --no-input --disable-pip-version-check)

unset CUDA_HOME CUDA_PATH # fairseq's build would look for sources that its package does not contain

say() { printf 'setup: %s\n' "$@"; }

die() {
  say "$*" >&2
  exit 1
}

# Prints the rank of the command $1, 0 being best, or why it cannot be used. Without its headers the
# kernels cannot be compiled, and fairseq only comes built for 3.12.
judge_python() {
  "$1" - 2>/dev/null <<'PYTHON' || echo "does not run"
import os, sys, sysconfig
version = sys.version_info[:2]
name = "%d.%d" % version
try:
    import ensurepip, venv
except ImportError:
    venv = None
if not (3, 11) <= version <= (3, 14):
    print("is Python " + name)
elif venv is None:
    print("has no venv module (on Debian and Ubuntu: apt-get install python%s-venv)" % name)
else:
    no_headers = not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h"))
    print((version != (3, 12)) + 2 * no_headers)
PYTHON
}

# Sets PYTHON to the best usable Python, unless it was given.
find_python() {
  local given=${PYTHON:-} told faults='' best=9 candidate candidates=(python3 python3.{12,13,14,11} python)
  [[ -z $given ]] || candidates=("$given")
  for candidate in "${candidates[@]}"; do
    [[ -n $given ]] || command -v "$candidate" >/dev/null || continue
    told=$(judge_python "$candidate")
    if [[ $told != [0-3] ]]; then
      faults+=" ${given:+PYTHON=}$candidate $told;"
    elif ((told < best)); then
      best=$told PYTHON=$candidate
    fi
  done
  ((best < 9)) ||
    die "no Python 3.11 to 3.14 with its venv module was found:${faults:- no python at all;}" \
      "install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

# try TEXT COMMAND...: run the command with its output in the log; step: and end if it fails.
try() {
  say "$1" | tee -a "$LOG"
  "${@:2}" >>"$LOG" 2>&1 </dev/null
}

step() {
  try "$@" && return
  tail -n 25 "$LOG" >&2
  die "failed: $1; the lines above are the end of $LOG. Run the same command again to continue"
}

install() {
  "${PIP[@]}" install --progress-bar off --no-warn-script-location --constraint constraints.txt "$@"
}

make_venv() {
  "$PYTHON" -m venv "$VENV"
  install --upgrade pip setuptools wheel # those of a Python may be years old
}

# pip writes RECORD last: without it a package looks installed but is incomplete.
forget_unfinished() {
  local info
  for info in "$VENV"/lib/python3.*/site-packages/*.dist-info; do
    [[ ! -d $info || -f $info/RECORD ]] || rm -r "$info"
  done
}

# offers_cpu_torch REQUIREMENT [OPTION...]: would pip with these options install a build without CUDA?
# Reads only the metadata, because the build for GPUs pulls in gigabytes.
offers_cpu_torch() {
  local report=$VENV/torch.json
  "${PIP[@]}" --timeout 15 --retries 1 install --quiet --dry-run --ignore-installed --no-deps \
    --report "$report" "$@" >>"$LOG" 2>&1 </dev/null && ! grep -Eq '"(nvidia|cuda)-' "$report"
}

# Installs torch alone; its dependencies come from pip's own configuration.
install_torch() {
  local torch from=()
  torch=$(grep '^torch==' constraints.txt)
  [[ $'\n'$("${PIP[@]}" freeze)$'\n' != *$'\n'"$torch"[$'\n+']* ]] || return 0
  if [[ -n ${TORCH_INDEX_URL:-} ]]; then
    from=(--index-url "$TORCH_INDEX_URL")
  elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    torch=${torch/==/===} # excludes builds with a suffix, such as +cpu, which == would prefer
  elif ! offers_cpu_torch "$torch"; then
    from=(--index-url "$CPU_INDEX")
    offers_cpu_torch "$torch" "${from[@]}" || {
      from=()
      say "no reachable index has $torch built for the CPU; the build for GPUs works too," \
        "but downloads several GB. To stop that: make TORCH_INDEX_URL=<an index of CPU builds>"
    }
  fi
  step "installing $torch" install --no-deps "${from[@]}" "$torch"
}

# Without build isolation, for which pip would download a second torch to build fairseq with.
install_fairseq() {
  install --no-build-isolation fairseq-fixed && "$VENV/bin/python" -c "import fairseq" && return
  "${PIP[@]}" uninstall --yes fairseq-fixed
  return 1
}

install_project() {
  local extras=train,serve,ray,bench,dev text="installing fairseq"
  [[ -d $VENV/lib/python3.12 ]] || text+=", which is compiled in some minutes"
  step "installing torch's dependencies and the build tools" install torch numpy cython pybind11
  try "$text" install_fairseq || {
    extras=${extras/train/prepare}
    say "fairseq could not be installed ($LOG says why), so training, fairseq's search and most tests" \
      "do not work; decoding does. Use Python 3.12, or $HELP"
  }
  step "installing everything else" install --no-build-isolation --editable ".[$extras]"
  compgen -G "$KERNELS/_kernels.*" >/dev/null ||
    say "the kernels for CPUs were not compiled, so decoding on a CPU takes several times as long;" \
      "to get them, $HELP"
}

# The compilers count, because a new one may have kernels to build.
fingerprint() {
  cat constraints.txt setup.py scripts/setup.sh "$KERNELS"/*.{cpp,h,inc} \
    <(pwd; command -v "${CXX:-c++}" g++) | sha256sum
}

# Whether the environment's Python runs and is the requested one, if any.
venv_fits() {
  local version='import sys; print(sys.version_info[:2])'
  "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || return 1
  [[ -z ${PYTHON:-} || $("$VENV/bin/python" -c "$version") == $("$PYTHON" -c "$version" 2>/dev/null) ]]
}

if [[ -f $STAMP && $(<"$STAMP") == "$(fingerprint)" ]] && venv_fits; then
  exit
fi
exec 9>.setup.lock
flock --nonblock 9 || { say "waiting for another set-up in this folder"; flock 9; }
[[ ! -e $VENV || -e $LOG ]] ||
  die "$VENV exists but was not made by this script: move it away or delete it, then run again"
if ! venv_fits || [[ $(cat "$VENV/place" 2>/dev/null) != "$PWD" ]]; then
  find_python
  rm -rf "$VENV"
  mkdir "$VENV"
  : >"$LOG"
  step "making $VENV with $("$PYTHON" --version)" make_venv
  pwd >"$VENV/place"
fi
forget_unfinished
install_torch
install_project
fingerprint >"$STAMP"
say "$VENV is ready"
