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
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${PYTHON:-}                 # empty: that of .venv if it exists, else python3
if [[ -z $PYTHON ]]; then
    PYTHON=python3
    [[ ! -x $ROOT/.venv/bin/python ]] || PYTHON=$ROOT/.venv/bin/python
fi

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
  --seed N            of initialisation and training (default $SEED)
  --cpu               use no GPU
  --python FILE       interpreter (default $PYTHON)
  --help              this text

A small run on a CPU: scripts/train.sh --data D --verifier V.pt --save-dir S --cpu \\
    --block-size 8 --updates 3000 --warmup 300 --batch-tokens 4096 --lr 1e-3
EOF
}

fail() {
    echo "train.sh: error: $1" >&2
    exit 2
}

FLAGS=()
while [[ $# -gt 0 ]]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --cpu) CPU=1; shift; continue ;;
        --) shift; FLAGS=("$@"); break ;;
    esac
    case $1 in
        --data | --verifier | --save-dir | --preset | --lr | --dropout | --warmup | --updates | \
            --batch-tokens | --max-tokens | --block-size | --arch | --decoder-layers | --workers | \
            --best-by | --precision | --seed | --python)
            [[ $# -ge 2 ]] || fail "$1 needs a value"
            name=${1#--}
            name=${name//-/_}
            printf -v "${name^^}" '%s' "$2"
            shift 2
            ;;
        *) fail "unknown option $1; see --help, and give flags of train.py after --" ;;
    esac
done

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
[[ -f $VERIFIER ]] || fail "--verifier $VERIFIER: no such file"
numbers=(WARMUP UPDATES BATCH_TOKENS MAX_TOKENS BLOCK_SIZE)
[[ -z $WORKERS ]] || numbers+=(WORKERS)
[[ -z $DECODER_LAYERS ]] || numbers+=(DECODER_LAYERS)
for name in "${numbers[@]}"; do
    flag=${name,,}
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] || fail "--${flag//_/-} is '${!name}', expected a whole number of 1 or more"
done

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

num_gpus=0
if [[ -z $CPU ]]; then
    num_gpus=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())') || fail "$PYTHON cannot import torch"
fi
launcher=("$PYTHON")
if [[ $num_gpus -eq 0 ]]; then
    WORKERS=${WORKERS:-1}
    PRECISION=${PRECISION:-fp32}
    device=(--cpu)
    if [[ $WORKERS -gt 1 ]]; then
        launcher=("$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$WORKERS")
    fi
else
    WORKERS=${WORKERS:-$num_gpus}
    PRECISION=${PRECISION:-fp16}
    device=(--distributed-world-size "$WORKERS")
fi
case $PRECISION in
    fp32) ;;
    fp16 | bf16) device+=("--$PRECISION") ;;
    *) fail "--precision is $PRECISION, expected fp32, fp16 or bf16" ;;
esac
# Rounded up: an update sees at least the tokens of the recipe.
update_freq=$(((BATCH_TOKENS + MAX_TOKENS * WORKERS - 1) / (MAX_TOKENS * WORKERS)))

mkdir -p "$SAVE_DIR"
initial=$SAVE_DIR/initial.pt
initialise=(
    --verifier "$VERIFIER" --output "$initial" --data "$DATA" --arch "$ARCH" --seed "$SEED" --print-flags
)
if [[ -n $DECODER_LAYERS ]]; then
    initialise+=(--decoder-layers "$DECODER_LAYERS")
fi
# Made anew each time, since its flags describe the network; it takes seconds.
echo "train.sh: initial checkpoint $initial" >&2
architecture=$("$PYTHON" "$ROOT/encoder_initial.py" "${initialise[@]}")
read -r -a architecture <<<"$architecture"

start=(--restore-file "$initial" --reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters)
if [[ -f $SAVE_DIR/checkpoint_last.pt ]]; then
    echo "train.sh: continuing from $SAVE_DIR/checkpoint_last.pt" >&2
    start=()
fi
echo "train.sh: $UPDATES updates of $BATCH_TOKENS tokens, $WORKERS worker(s), $PRECISION" >&2
exec "${launcher[@]}" "$ROOT/train.py" "$DATA" \
    --user-dir "$ROOT/specdec_plugins" --task translation_lev_modified --noise block_mask \
    --block-size "$BLOCK_SIZE" "${architecture[@]}" --dropout "$DROPOUT" \
    --criterion glat_loss --label-smoothing 0.1 --total-up "$UPDATES" --max-update "$UPDATES" \
    --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 5 \
    --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP" --warmup-init-lr 1e-7 \
    --stop-min-lr 1e-9 --max-tokens "$MAX_TOKENS" --update-freq "$update_freq" --seed "$SEED" \
    --save-dir "$SAVE_DIR" --keep-last-epochs 10 --log-interval 100 \
    "${validation[@]}" "${start[@]}" "${device[@]}" "${FLAGS[@]}"
