#!/usr/bin/env bash
# From parallel text to a bundled pair of models and a report on it; all flags: --help
#
#   scripts/recipe.sh --preset small --train corpora/ --valid dev.tsv.xz --test test.tsv.xz --out work/en-de
#   until timeout -s USR1 1h scripts/recipe.sh ... --out work/en-de; do [[ $? -eq 124 ]] || break; done
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli train recipe "$@"
