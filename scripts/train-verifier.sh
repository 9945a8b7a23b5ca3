#!/usr/bin/env bash
# Train a verifier: fairseq's Transformer on prepared or distilled data, or continue one.
# All flags: --help
#
#   scripts/train-verifier.sh --data work/mine/data-bin --save-dir verifier
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli train verifier "$@"
