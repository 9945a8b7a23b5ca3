#!/usr/bin/env bash
# sacreBLEU with its signature, chrF, compound-split BLEU (English-German), and, against another
# output, the paired bootstrap. All flags: --help
#
#   scripts/evaluate.sh output.de work/mine/raw/test.de --baseline greedy.de
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/run-module.sh"

# Flags override these.
SRC="${SRC:-en}"
TGT="${TGT:-de}"
SAMPLES="${SAMPLES:-1000}"   # of the bootstrap

run_module specdec_plugins.corpus.scoring evaluate \
  --src "$SRC" --tgt "$TGT" --samples "$SAMPLES" "$@"
