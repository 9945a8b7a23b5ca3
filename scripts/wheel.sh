#!/usr/bin/env bash
# Wheels with compiled kernels, for every Python 3.11 and 3.12 here that has its headers. Each is tried in an
# environment of its own without compiler and without fairseq before it is put in place. All flags: --help
#
#   scripts/wheel.sh --output wheels
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m scripts.wheels "$@"
