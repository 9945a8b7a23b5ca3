#!/usr/bin/env bash
# Merge training files without the sentences of dev and test sets. A match on either side counts;
# case, punctuation and spaces are ignored. All flags: --help
#
#   scripts/decontaminate.sh --pair en-de --train a.tsv.xz b.tsv.xz --valid dev.tsv.xz:13072- \
#       --test test.tsv.xz --also data/samples/en-de.tsv --out work/mix
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli prepare mix "$@"
