#!/usr/bin/env bash
# Count the bigrams of the verifier's output, for the block drafter. All flags: --help
#
#   scripts/count-bigrams.sh work/distilled --output work/bigrams.safetensors
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli convert bigrams "$@"
