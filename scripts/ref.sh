#!/usr/bin/env bash
# Compound-split BLEU as published for English-German: the references of a fairseq-generate log (its
# T- lines) against an output file of tokenised translations, one a line, by fairseq-score.
#
#   scripts/ref.sh generate-test.txt output.de
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli evaluate ref "$@"
