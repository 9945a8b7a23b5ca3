#!/usr/bin/env bash
# Build the virtual environment .venv with the versions of constraints.txt. A second run has nothing
# to do; after an interruption the next one continues.
#
# PYTHON           the Python to use; without it 3.12 where it has its headers, else 3.11
# TORCH_INDEX_URL  the package index to take torch from, where neither pip's own configuration nor
#                  PyTorch's index of CPU builds will do
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly LOG=$VENV/setup.log # its presence marks an environment as made here
readonly STAMP=$VENV/setup.stamp
readonly KERNELS=specdec_plugins/decoding/networks/cpu
readonly CPU_INDEX=https://download.pytorch.org/whl/cpu
readonly PIP=(.venv/bin/python -m pip --no-input --disable-pip-version-check)

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# --- which Python ---------------------------------------------------------------------------------

# The version is not guessed from the name: a version manager's python3.12 may exist and not run.
python_version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Prints where the headers of the command $1 should be; fails if they are missing.
python_header() {
  "$1" -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")' | {
    read -r header
    echo "$header"
    [[ -f $header ]]
  }
}

# Prints the rank of the command $1, 0 being best, or why it cannot be used. fairseq comes built for
# 3.12, and the headers are needed to compile the kernels (else decoding is slower) and fairseq for
# 3.11.
judge_python() {
  local version rank=0
  if ! version=$(python_version "$1"); then
    echo "does not run"
  elif [[ $version != 3.11 && $version != 3.12 ]]; then
    echo "is Python $version"
  elif ! "$1" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "has no venv module (on Debian and Ubuntu: apt-get install python$version-venv)"
  else
    [[ $version == 3.12 ]] || rank=1
    python_header "$1" >/dev/null || rank=$((rank + 2))
    echo "$rank"
  fi
}

# Sets PYTHON to the best usable Python, unless it was given.
find_python() {
  local given=${PYTHON:-} told faults='' best=9 candidate candidates=(python3 python3.12 python3.11 python)
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
    die "no Python 3.11 or 3.12 with its venv module was found:${faults:- no python at all;}" \
      "install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

# fairseq comes built for Python 3.12 on Linux, and is compiled here for 3.11.
check_compiler() {
  [[ $(python_version "$PYTHON") == 3.11 ]] || return 0
  command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
    die "no C++ compiler found, and fairseq must be compiled for Python 3.11: install one" \
      "(on Debian and Ubuntu: apt-get install g++), or use Python 3.12, for which fairseq comes built"
  local header
  header=$(python_header "$PYTHON") ||
    die "$header is missing, and compiling fairseq for Python 3.11 needs it" \
      "(on Debian and Ubuntu: apt-get install python3.11-dev)"
}

# --- running a step -------------------------------------------------------------------------------

# The last output of pip or the compiler.
last_words() {
  tail -c 2000 "$LOG" | tr '\r' '\n' | tail -n 1 | awk '
    /^Progress [0-9]+ of [0-9]+/ { printf "%d of %d MB", $2 / 1e6, $4 / 1e6; next }
    { gsub(/[^[:print:]]/, ""); sub(/^ +/, ""); print substr($0, 1, 70) }'
}

# watch TEXT COMMAND...: run the command with its output in the log, and show progress.
watch() {
  local text=$1 began=$SECONDS pid next pause=10 start='' end='\n'
  shift
  [[ ! -t 1 ]] || { pause=1 start='\r\033[K' end=; }
  printf 'setup: %s\n' "$text" | tee -a "$LOG"
  set -m # a process group of its own, so that ctrl-C ends the compilers too
  "$@" >>"$LOG" 2>&1 </dev/null &
  pid=$!
  set +m
  # shellcheck disable=SC2064  # this process, now
  trap "kill -- -$pid 2>/dev/null; echo; exit 130" INT TERM
  next=$((began + pause))
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    ((SECONDS >= next)) || continue
    next=$((SECONDS + pause))
    # shellcheck disable=SC2059  # the ends hold escapes
    printf "$start  %4d s  %s$end" $((SECONDS - began)) "$(last_words)"
  done
  # shellcheck disable=SC2059
  printf "$start"
  trap - INT TERM
  wait "$pid" || {
    tail -n 25 "$LOG" >&2
    die "failed: $text; the lines above are the end of $LOG. Run the same command again to continue"
  }
}

pip_install() {
  "${PIP[@]}" install --progress-bar raw --no-warn-script-location --constraint constraints.txt "$@"
}

# --- the steps ------------------------------------------------------------------------------------

make_venv() {
  "$PYTHON" -m venv "$VENV"
  # Before anything else: the versions bundled with a Python may be years old.
  "${PIP[@]}" install --quiet --constraint constraints.txt --upgrade pip setuptools wheel
}

# pip writes RECORD last: without it a package looks installed but is incomplete.
forget_unfinished() {
  local info
  for info in "$VENV"/lib/python3.*/site-packages/*.dist-info; do
    [[ ! -d $info || -f $info/RECORD ]] || rm -r "$info"
  done
}

has_gpu() {
  command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU
}

# offers_cpu_torch REQUIREMENT [OPTION...]: would pip with these options install a build without CUDA?
# Reads only the metadata, because the build for GPUs pulls in gigabytes.
offers_cpu_torch() {
  "${PIP[@]}" --timeout 15 --retries 1 install --quiet --dry-run --ignore-installed --no-deps \
    --report "$VENV/torch.json" "$@" >>"$LOG" 2>&1 </dev/null || return 1
  .venv/bin/python - "$VENV/torch.json" <<'PYTHON'
import json, sys

with open(sys.argv[1], encoding="utf-8") as file:
    needs = json.load(file)["install"][0]["metadata"].get("requires_dist", [])
sys.exit(any(need.startswith(("nvidia-", "cuda-")) for need in needs))
PYTHON
}

# Installs torch alone; its dependencies come from pip's own configuration in the next step.
install_torch() {
  local torch
  torch=$(grep '^torch==' constraints.txt)
  [[ $'\n'$("${PIP[@]}" freeze)$'\n' != *$'\n'"$torch"[$'\n+']* ]] || return 0
  if [[ -n ${TORCH_INDEX_URL:-} ]]; then
    watch "installing $torch from $TORCH_INDEX_URL" pip_install --no-deps --index-url "$TORCH_INDEX_URL" "$torch"
  elif has_gpu; then
    # === excludes builds with a suffix, such as +cpu, which == would prefer.
    watch "installing $torch for the GPU" pip_install --no-deps "${torch/==/===}"
  elif offers_cpu_torch "$torch"; then
    watch "installing $torch built for the CPU" pip_install --no-deps "$torch"
  elif offers_cpu_torch "$torch" --index-url "$CPU_INDEX"; then
    watch "installing $torch built for the CPU" pip_install --no-deps --index-url "$CPU_INDEX" "$torch"
  else
    echo "setup: no reachable index has $torch built for the CPU; the build for GPUs works too,"
    echo "setup: but downloads several GB. To stop that: make TORCH_INDEX_URL=<an index of CPU builds>"
    watch "installing $torch built for GPUs" pip_install --no-deps "$torch"
  fi
}

# Without build isolation, for which pip would download a second torch to build fairseq with. A set
# CUDA_HOME makes fairseq's build look for CUDA sources that its package does not contain.
install_project() {
  watch "installing torch's dependencies and the build tools" pip_install torch numpy cython pybind11
  local text="installing everything else"
  [[ ! -d $VENV/lib/python3.11 ]] || text+="; compiling fairseq takes minutes"
  watch "$text" env -u CUDA_HOME -u CUDA_PATH "${PIP[@]}" install --verbose --progress-bar raw \
    --no-build-isolation --constraint constraints.txt --editable '.[train,serve,ray,bench,dev]'
  compgen -G "$KERNELS/_kernels.*" >/dev/null || {
    echo "setup: the kernels for CPUs were not compiled, so decoding on a CPU takes several times as long;"
    echo "setup: to get them, install a C++ compiler and Python's headers (on Debian and Ubuntu:"
    echo "setup: apt-get install g++ python3-dev), and run the same command again"
  }
}

# --- all of it ------------------------------------------------------------------------------------

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

main() {
  if [[ -f $STAMP && $(<"$STAMP") == "$(fingerprint)" ]] && venv_fits; then
    return
  fi
  exec 9>.setup.lock
  flock --nonblock 9 || { echo "setup: waiting for another set-up in this folder"; flock 9; }

  [[ ! -e $VENV || -e $LOG ]] ||
    die "$VENV exists but was not made by this script: move it away or delete it, then run again"
  if ! venv_fits || [[ $(cat "$VENV/place" 2>/dev/null) != "$PWD" ]]; then
    find_python
    check_compiler
    rm -rf "$VENV"
    mkdir "$VENV"
    : >"$LOG"
    watch "making $VENV with $("$PYTHON" --version)" make_venv
    pwd >"$VENV/place"
  fi
  forget_unfinished
  install_torch
  install_project
  fingerprint >"$STAMP"
  echo "setup: $VENV is ready"
}

main
