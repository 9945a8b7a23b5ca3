#!/usr/bin/env bash
# Train a drafter for a trained verifier: initial checkpoint first, then train.py as published.
# All flags: --help
#
#   scripts/train.sh --data work/mine/distilled --verifier verifier/checkpoint_last.pt --save-dir drafter
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli train drafter "$@"
