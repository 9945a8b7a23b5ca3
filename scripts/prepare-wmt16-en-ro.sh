#!/usr/bin/env bash
# WMT16 English-Romanian: europarl v8, SETIMES2; newsdev2016, newstest2016.
# All flags: --help. The other direction: --direction ro-en. Published BPE codes and dictionary:
# --codes FILE --dict FILE.
#
#   scripts/prepare-wmt16-en-ro.sh --out work/wmt16-en-ro
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli prepare wmt wmt16-en-ro "$@"
