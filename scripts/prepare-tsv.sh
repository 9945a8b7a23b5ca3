#!/usr/bin/env bash
# Any parallel text to a data-bin for fairseq, with raw references for scoring. All flags: --help
#
#   scripts/prepare-tsv.sh --src en --tgt de --train a.tsv.xz b.en,b.de --valid dev.tsv \
#       --test test.tsv --out work/mine
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/run-module.sh"

# Flags override these.
MERGES="${MERGES:-10000}"         # joint BPE merges
MAX_LENGTH="${MAX_LENGTH:-250}"   # words a side, training pairs only
MAX_RATIO="${MAX_RATIO:-3}"       # longer side / shorter side, training pairs only

run_module specdec_plugins.corpus.prepare \
  --merges "$MERGES" --max-length "$MAX_LENGTH" --max-ratio "$MAX_RATIO" "$@"
