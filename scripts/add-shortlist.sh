#!/usr/bin/env bash
# Add a shortlist: the target tokens that the words of a source make likely. A drafter with a sequential head
# scores these in place of its whole vocabulary. All flags: --help
#
#   scripts/add-shortlist.sh work/distilled --path drafter/checkpoint_last.pt --output drafter/listed.pt
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli convert shortlist "$@"
