#!/usr/bin/env bash
# Train a verifier: fairseq's Transformer on prepared or distilled data, or one that goes on.
set -euo pipefail

# Every variable can be set in the environment; a flag (see --help) goes before it.
DATA=${DATA:-}                   # folder of fairseq-preprocess
SAVE_DIR=${SAVE_DIR:-}           # folder for the checkpoints
FROM=${FROM:-}                   # checkpoint to start from, such as a verifier before distillation
ENCODER_LAYERS=${ENCODER_LAYERS:-6}
DECODER_LAYERS=${DECODER_LAYERS:-6}
WIDTH=${WIDTH:-512}              # of embeddings and layers
FFN=${FFN:-2048}                 # inner width of the feed-forward parts
HEADS=${HEADS:-8}
LR=${LR:-7e-4}                   # peak learning rate
DROPOUT=${DROPOUT:-0.1}
WARMUP=${WARMUP:-4000}           # updates until the peak
UPDATES=${UPDATES:-100000}       # updates in all
BATCH_TOKENS=${BATCH_TOKENS:-32000} # target tokens an update, all workers together
MAX_TOKENS=${MAX_TOKENS:-4096}   # tokens a worker computes at once
WORKERS=${WORKERS:-}             # GPUs, or processes on CPUs; empty: all GPUs, or one process
PRECISION=${PRECISION:-}         # fp32, fp16 or bf16; empty: fp16 on GPUs, fp32 on CPUs
SEED=${SEED:-1}
CPU=${CPU:-}                     # not empty: use no GPU
UNTIL=${UNTIL:-0}                # Unix time at which this piece ends; 0: none
PYTHON=${PYTHON:-}               # empty: that of .venv if it exists, else python3
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

usage() {
    cat <<USAGE
Usage: scripts/train-verifier.sh --data DIR --save-dir DIR [options] [-- train.py flags]

  --data DIR          folder of fairseq-preprocess
  --save-dir DIR      folder for the checkpoints; a run that was stopped continues there
  --from FILE         checkpoint of the same sizes to start from (its optimizer does not come along)
  --encoder-layers N, --decoder-layers N, --width N, --ffn N, --heads N
                      sizes (default $ENCODER_LAYERS, $DECODER_LAYERS, $WIDTH, $FFN, $HEADS)
  --lr, --dropout, --warmup, --updates, --batch-tokens
                      (default $LR, $DROPOUT, $WARMUP, $UPDATES, $BATCH_TOKENS)
  --max-tokens N      tokens that a worker computes at once (default $MAX_TOKENS)
  --workers N         GPUs, or processes on CPUs (default: all GPUs, or one process)
  --precision NAME    fp32, fp16 or bf16 (default: fp16 on GPUs, fp32 on CPUs)
  --until TIME        end this piece at that Unix time (\$((\$(date +%s) + 600)): in ten minutes) with
                      exit status 75; the same command goes on. What must travel to another machine:
                      weights.pt (float16), pieces.json and the checkpoints to average of SAVE_DIR
  --seed N            of initialisation and training (default $SEED)
  --cpu               use no GPU
  --python FILE       interpreter (default $PYTHON)
  --help              this text
USAGE
}

read_options "data save-dir from encoder-layers decoder-layers width ffn heads lr dropout warmup updates \
    batch-tokens max-tokens workers precision until seed python" "$@"

[[ -n $DATA && -n $SAVE_DIR ]] || fail "--data and --save-dir are needed; see --help"
[[ -d $DATA ]] || fail "--data $DATA: no such folder"
[[ -z $FROM ]] || check_file --from "$FROM" "a checkpoint of fairseq"
numbers=(ENCODER_LAYERS DECODER_LAYERS WIDTH FFN HEADS WARMUP UPDATES BATCH_TOKENS MAX_TOKENS)
[[ -z $WORKERS ]] || numbers+=(WORKERS)
check_numbers "${numbers[@]}"
check_until

choose_workers
open_piece
start=()
if [[ -f $SAVE_DIR/checkpoint_last.pt ]]; then
    say "continuing from $SAVE_DIR/checkpoint_last.pt"
elif [[ -n $FROM ]]; then
    start=(--finetune-from-model "$FROM")
fi
# The vocabulary is joint, so one table serves both sides and the output.
train "$DATA" \
    --task translation --arch transformer --share-all-embeddings \
    --encoder-layers "$ENCODER_LAYERS" --decoder-layers "$DECODER_LAYERS" \
    --encoder-embed-dim "$WIDTH" --decoder-embed-dim "$WIDTH" \
    --encoder-ffn-embed-dim "$FFN" --decoder-ffn-embed-dim "$FFN" \
    --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS" --dropout "$DROPOUT" \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1 \
    --lr "$LR" --warmup-updates "$WARMUP" --warmup-init-lr 1e-7 --stop-min-lr 1e-9 \
    --keep-last-epochs 10 --log-interval 100 "${start[@]}"
close_piece
