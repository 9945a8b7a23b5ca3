#!/usr/bin/env bash
# sacreBLEU with its signature, chrF, compound-split BLEU (English-German), and, against another
# output, the paired bootstrap. All flags: --help.
#
#   scripts/evaluate.sh output.de work/mine/raw/test.de --baseline greedy.de
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli evaluate "$@"
