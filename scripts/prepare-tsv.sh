#!/usr/bin/env bash
# Any parallel text to a data-bin for fairseq, with raw references for scoring. All flags: --help
#
#   scripts/prepare-tsv.sh --src en --tgt de --train a.tsv.xz b.en,b.de --valid dev.tsv \
#       --test test.tsv --out work/mine
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli prepare "$@"
