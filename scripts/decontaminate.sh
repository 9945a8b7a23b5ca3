#!/usr/bin/env bash
# Training files put together without the sentences of dev and test sets: either side counts, and
# case, punctuation and spaces do not. All flags: --help
#
#   scripts/decontaminate.sh --pair en-de --train a.tsv.xz b.tsv.xz --valid dev.tsv.xz:13072- \
#       --test test.tsv.xz --also data/samples/en-de.tsv --out work/mix
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.corpus.decontaminate "$@"
