#!/usr/bin/env bash
# WMT14 English-German: europarl v7, commoncrawl, news-commentary v9; newstest2013, newstest2014.
# All flags: --help. The other direction: --direction de-en. Published BPE codes and dictionary:
# --codes FILE --dict FILE.
#
#   scripts/prepare-wmt14-en-de.sh --out work/wmt14-en-de
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/run-module.sh"

# Flags override these.
OUT="${OUT:-work/wmt14-en-de}"
MERGES="${MERGES:-32000}"         # joint BPE merges
MAX_LENGTH="${MAX_LENGTH:-250}"   # words a side, training pairs only
MAX_RATIO="${MAX_RATIO:-1.5}"     # longer side / shorter side, training pairs only
BAD_LINES="${BAD_LINES:-skip}"    # web text holds a few lines that are not UTF-8

run_module specdec_plugins.corpus.wmt wmt14-en-de \
  --out "$OUT" --merges "$MERGES" --max-length "$MAX_LENGTH" --max-ratio "$MAX_RATIO" \
  --bad-lines "$BAD_LINES" "$@"
