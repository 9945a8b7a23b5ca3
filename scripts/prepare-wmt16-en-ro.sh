#!/usr/bin/env bash
# WMT16 English-Romanian: europarl v8, SETIMES2; newsdev2016, newstest2016.
# All flags: --help. The other direction: --direction ro-en. Published BPE codes and dictionary:
# --codes FILE --dict FILE.
#
#   scripts/prepare-wmt16-en-ro.sh --out work/wmt16-en-ro
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/run-module.sh"

# Flags override these.
OUT="${OUT:-work/wmt16-en-ro}"
MERGES="${MERGES:-32000}"         # joint BPE merges
MAX_LENGTH="${MAX_LENGTH:-250}"   # words a side, training pairs only
MAX_RATIO="${MAX_RATIO:-1.5}"     # longer side / shorter side, training pairs only
BAD_LINES="${BAD_LINES:-skip}"    # web text holds a few lines that are not UTF-8

run_module specdec_plugins.corpus.wmt wmt16-en-ro \
  --out "$OUT" --merges "$MERGES" --max-length "$MAX_LENGTH" --max-ratio "$MAX_RATIO" \
  --bad-lines "$BAD_LINES" "$@"
