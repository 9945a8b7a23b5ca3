#!/usr/bin/env bash
# The experiments of the SpecDec paper on a bundle and a test set: tables, plots, JSON. Stop it at
# any time: the same command resumes. All flags: --help
#
#   scripts/reproduce.sh data/models/en-de --input test.en --reference test.de \
#       --output benchmarks/results/en-de.newstest2014 --block-sizes 10 25 --taus 1 3
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli bench reproduce "$@"
