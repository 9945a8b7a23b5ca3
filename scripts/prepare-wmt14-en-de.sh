#!/usr/bin/env bash
# WMT14 English-German: europarl v7, commoncrawl, news-commentary v9; newstest2013, newstest2014.
# All flags: --help. The other direction: --direction de-en. Published BPE codes and dictionary:
# --codes FILE --dict FILE.
#
#   scripts/prepare-wmt14-en-de.sh --out work/wmt14-en-de
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli prepare wmt wmt14-en-de "$@"
