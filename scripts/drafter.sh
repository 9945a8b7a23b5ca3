#!/usr/bin/env bash
# A drafter for a model that you have: a bundle, a fairseq checkpoint with its dictionaries, or a folder of
# transformers (MarianMT, M2M-100, NLLB, BART, mBART). Translates text in the model's source language, trains on
# what it says, measures, and bundles both. Stop it whenever you like: run again, it goes on. All flags: --help
#
#   scripts/drafter.sh opus-mt-en-de --text news.en --output opus-drafting --hours 4
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.app.drafter "$@"
