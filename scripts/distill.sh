#!/usr/bin/env bash
# Translate a training set with the verifier, and binarise the result as a new data-bin with the
# same dictionaries, dev and test sets. Stop it at any time: the same command resumes.
# All flags: --help. On several machines that share a folder: --num-shards N --shard-id 0..N-1, or
# --ray ADDRESS of a Ray cluster.
#
#   scripts/distill.sh work/mine/data-bin --path checkpoints/verifier.pt --output work/mine/distilled
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m specdec_plugins.cli distill "$@"
