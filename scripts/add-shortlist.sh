#!/usr/bin/env bash
# Which target tokens the words of a source make likely: what a drafter with a sequential head scores in
# place of its whole vocabulary. All flags: --help
#
#   scripts/add-shortlist.sh work/distilled --path drafter/checkpoint_last.pt --output drafter/listed.pt
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.corpus.binarising shortlist "$@"
