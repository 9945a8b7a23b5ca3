#!/usr/bin/env bash
# Train a drafter for a trained verifier: initial checkpoint first, then train.py as published.
set -euo pipefail

# Every variable can be set in the environment; a flag (see --help) goes before it.
DATA=${DATA:-}                     # folder of fairseq-preprocess; distilled targets
VERIFIER=${VERIFIER:-}             # checkpoint of the verifier
SAVE_DIR=${SAVE_DIR:-}             # folder for the drafter's checkpoints
PRESET=${PRESET:-en-de}            # en-de or en-ro: the published recipes, defaults of the next five
LR=${LR:-}                         # peak learning rate
DROPOUT=${DROPOUT:-}
WARMUP=${WARMUP:-}                 # updates until the peak
UPDATES=${UPDATES:-}               # updates in all; glancing falls over the same time
BATCH_TOKENS=${BATCH_TOKENS:-}     # target tokens an update, all workers together
MAX_TOKENS=${MAX_TOKENS:-4096}     # tokens a worker computes at once
BLOCK_SIZE=${BLOCK_SIZE:-25}       # tokens drafted at once
ARCH=${ARCH:-block}                # block: as published; block_fast: reads the verifier's encoder
DECODER_LAYERS=${DECODER_LAYERS:-} # of the drafter; empty: as many as the verifier has, or two
WORKERS=${WORKERS:-}               # GPUs, or processes on CPUs; empty: all GPUs, or one process
BEST_BY=${BEST_BY:-accepted}       # accepted: validate by decoding with the verifier; or loss
PRECISION=${PRECISION:-}           # fp32, fp16 or bf16; empty: fp16 on GPUs, fp32 on CPUs
SEED=${SEED:-1}
CPU=${CPU:-}                       # not empty: use no GPU
UNTIL=${UNTIL:-0}                  # Unix time at which this piece ends; 0: none
PYTHON=${PYTHON:-}                 # empty: that of .venv if it exists, else python3
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

usage() {
    cat <<EOF
Usage: scripts/train.sh --data DIR --verifier V.pt --save-dir DIR [options] [-- train.py flags]

  --data DIR          folder of fairseq-preprocess (train on distilled targets)
  --verifier FILE     checkpoint of the verifier, whose encoder the drafter starts from
  --save-dir DIR      folder for the drafter's checkpoints; a run that was stopped continues there
  --preset NAME       en-de (default): lr 5e-4, dropout 0.1, warm-up 10000, 300000 updates, 128000
                      tokens; en-ro: lr 1e-3, dropout 0.2, warm-up 4000, 50000 updates, 64000 tokens
  --lr, --dropout, --warmup, --updates, --batch-tokens
                      the preset's values, one by one
  --max-tokens N      tokens that a worker computes at once (default $MAX_TOKENS)
  --block-size K      tokens drafted at once (default $BLOCK_SIZE)
  --arch NAME         block (default): as published; block_fast: the verifier's encoder as it is,
                      and a prefix that is computed once
  --decoder-layers N  layers of the drafter's decoder (default: the verifier's; block_fast: 2)
  --workers N         GPUs, or processes on CPUs (default: all GPUs, or one process)
  --best-by NAME      what the best checkpoint is chosen by: accepted (default), the mean accepted
                      tokens of the dev set, decoded with the verifier; or loss
  --precision NAME    fp32, fp16 or bf16 (default: fp16 on GPUs, fp32 on CPUs)
  --until TIME        end this piece at that Unix time (\$((\$(date +%s) + 600)): in ten minutes) with
                      exit status 75; the same command goes on. What must travel to another machine:
                      weights.pt (float16), pieces.json and the checkpoints to average of SAVE_DIR
  --seed N            of initialisation and training (default $SEED)
  --cpu               use no GPU
  --python FILE       interpreter (default $PYTHON)
  --help              this text

A small run on a CPU: scripts/train.sh --data D --verifier V.pt --save-dir S --cpu \\
    --block-size 8 --updates 3000 --warmup 300 --batch-tokens 4096 --lr 1e-3
EOF
}

read_options "data verifier save-dir preset lr dropout warmup updates batch-tokens max-tokens \
    block-size arch decoder-layers workers best-by precision until seed python" "$@"

case $PRESET in
    en-de) recipe=(5e-4 0.1 10000 300000 128000) ;;
    en-ro) recipe=(1e-3 0.2 4000 50000 64000) ;;
    *) fail "--preset is $PRESET, expected en-de or en-ro" ;;
esac
LR=${LR:-${recipe[0]}}
DROPOUT=${DROPOUT:-${recipe[1]}}
WARMUP=${WARMUP:-${recipe[2]}}
UPDATES=${UPDATES:-${recipe[3]}}
BATCH_TOKENS=${BATCH_TOKENS:-${recipe[4]}}

[[ -n $DATA && -n $VERIFIER && -n $SAVE_DIR ]] || fail "--data, --verifier and --save-dir are needed; see --help"
[[ -d $DATA ]] || fail "--data $DATA: no such folder"
check_file --verifier "$VERIFIER" "a checkpoint of fairseq"
numbers=(WARMUP UPDATES BATCH_TOKENS MAX_TOKENS BLOCK_SIZE)
[[ -z $WORKERS ]] || numbers+=(WORKERS)
[[ -z $DECODER_LAYERS ]] || numbers+=(DECODER_LAYERS)
check_numbers "${numbers[@]}"
check_until

[[ $ARCH == block || $ARCH == block_fast ]] || fail "--arch is $ARCH, expected block or block_fast"

case $BEST_BY in
    accepted)
        validation=(
            --eval-block-decoding --verifier-path "$VERIFIER" --eval-bleu-remove-bpe
            --best-checkpoint-metric accepted --maximize-best-checkpoint-metric
        )
        ;;
    loss) validation=() ;;
    *) fail "--best-by is $BEST_BY, expected accepted or loss" ;;
esac

choose_workers
initial=$SAVE_DIR/initial.pt
initialise=(
    --verifier "$VERIFIER" --output "$initial" --data "$DATA" --arch "$ARCH" --seed "$SEED" --print-flags
)
if [[ -n $DECODER_LAYERS ]]; then
    initialise+=(--decoder-layers "$DECODER_LAYERS")
fi
# Made anew each time, since its flags describe the network; it takes seconds. Before anything else,
# since it refuses a verifier that does not fit and leaves no folder then.
say "initial checkpoint $initial"
architecture=$("$PYTHON" "$ROOT/encoder_initial.py" "${initialise[@]}")
read -r -a architecture <<<"$architecture"
open_piece

start=(--restore-file "$initial" --reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters)
if [[ -f $SAVE_DIR/checkpoint_last.pt ]]; then
    say "continuing from $SAVE_DIR/checkpoint_last.pt"
    start=()
fi
train "$DATA" \
    --user-dir "$ROOT/specdec_plugins" --task translation_lev_modified --noise block_mask \
    --block-size "$BLOCK_SIZE" "${architecture[@]}" --dropout "$DROPOUT" \
    --criterion glat_loss --label-smoothing 0.1 --total-up "$UPDATES" \
    --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 5 \
    --lr "$LR" --warmup-updates "$WARMUP" --warmup-init-lr 1e-7 --stop-min-lr 1e-9 \
    --keep-last-epochs 10 --log-interval 100 "${validation[@]}" "${start[@]}"
close_piece
