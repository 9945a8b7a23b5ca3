#!/usr/bin/env bash
# Build wheels with compiled kernels, for every Python 3.11 and 3.12 here that has its headers. Each is tested in
# an environment of its own, without compiler and fairseq, before it is put in place. All flags: --help
#
#   scripts/wheel.sh --output wheels
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m scripts.wheels "$@"
