#!/usr/bin/env bash
# Convert models between formats. All flags: --help, and --help after each subcommand
#
#   scripts/convert.sh bundle data-bin --AR-path verifier.pt --path drafter.pt --bpe-codes codes --output FOLDER
#   scripts/convert.sh fairseq BUNDLE --output FOLDER
#   scripts/convert.sh marian BUNDLE --output FOLDER
#   scripts/convert.sh ctranslate2 BUNDLE --output FOLDER
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli convert "$@"
