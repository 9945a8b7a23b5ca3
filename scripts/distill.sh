#!/usr/bin/env bash
# Translate a training set with the verifier, and binarise the result as a new data-bin with the
# same dictionaries, dev and test sets. Stop it whenever you like: run again, it goes on.
# All flags: --help. On several machines that share a folder: --num-shards N --shard-id 0..N-1, or
# --ray ADDRESS of a Ray cluster.
#
#   scripts/distill.sh work/mine/data-bin --path checkpoints/verifier.pt --output work/mine/distilled
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/run-module.sh"

# Flags override these.
BEAM="${BEAM:-5}"                  # 1 is greedy: weaker targets, several times quicker
LENPEN="${LENPEN:-1.0}"            # above 1 favours longer sentences
MAX_LEN_A="${MAX_LEN_A:-0}"        # at most A * source length + B tokens
MAX_LEN_B="${MAX_LEN_B:-200}"
MAX_TOKENS="${MAX_TOKENS:-4096}"   # source tokens a batch; lower it if memory runs out
UNTIL="${UNTIL:-0}"                # Unix time at which to stop behind a chunk; 0: none

run_module specdec_plugins.corpus.distill \
  --beam "$BEAM" --lenpen "$LENPEN" --max-len-a "$MAX_LEN_A" --max-len-b "$MAX_LEN_B" \
  --max-tokens "$MAX_TOKENS" --until "$UNTIL" "$@"
