#!/usr/bin/env bash
# Train a drafter for an existing model: a bundle, a fairseq checkpoint with its dictionaries, or a transformers
# folder (MarianMT, M2M-100, NLLB, BART, mBART). Translates text in the model's source language, trains on the
# output, measures, and bundles both. Stop it at any time: the same command resumes. All flags: --help
#
#   scripts/drafter.sh opus-mt-en-de --text news.en --output opus-drafting --hours 4
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli drafter "$@"
