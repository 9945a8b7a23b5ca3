# shellcheck shell=bash
# Sourced by train.sh and train-verifier.sh: interpreter, options, processes, pieces of training.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -z $PYTHON ]]; then
    PYTHON=python3
    [[ ! -x $ROOT/.venv/bin/python ]] || PYTHON=$ROOT/.venv/bin/python
fi

fail() {
    echo "$(basename "$0"): error: $1" >&2
    exit 2
}

say() {
    echo "$(basename "$0"): $1" >&2
}

# read_options "NAME ..." ARGUMENT...: each --name VALUE goes into the variable NAME; --cpu into CPU,
# what stands behind -- into FLAGS. --help prints the usage of the script that sources this file.
read_options() {
    local known=" $1 " name
    shift
    FLAGS=()
    while [[ $# -gt 0 ]]; do
        case $1 in
            --help | -h) usage; exit 0 ;;
            --cpu) CPU=1; shift; continue ;;
            --) shift; FLAGS=("$@"); return ;;
        esac
        name=${1#--}
        [[ $1 == --* && $known == *" $name "* ]] ||
            fail "unknown option $1; see --help, and give flags of train.py after --"
        [[ $# -ge 2 ]] || fail "$1 needs a value"
        name=${name//-/_}
        printf -v "${name^^}" '%s' "$2"
        shift 2
    done
}

# check_file FLAG PATH WHAT
check_file() {
    [[ ! -d $2 ]] || fail "$1 $2: a folder; expected $3"
    [[ -f $2 ]] || fail "$1 $2: no such file; expected $3"
}

# check_numbers NAME...: variables that must hold a whole number of 1 or more
check_numbers() {
    local name flag
    for name in "$@"; do
        flag=${name,,}
        [[ ${!name} =~ ^[1-9][0-9]*$ ]] ||
            fail "--${flag//_/-} is '${!name}', expected a whole number of 1 or more"
    done
}

check_until() {
    [[ $UNTIL =~ ^[0-9]+$ ]] || fail "--until is '$UNTIL', expected a Unix time, as date +%s prints it"
}

# glibc gives large blocks back to the system after each use, and the system clears every page of
# them for the next. Memory that is kept, in huge pages, costs nothing. What the environment says
# already stays.
keep_memory() {
    export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-4294967296}
    export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592}
    export MALLOC_TOP_PAD_=${MALLOC_TOP_PAD_:-268435456}
    export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
}

# Sets launcher, device and update_freq from CPU, WORKERS, PRECISION, BATCH_TOKENS and MAX_TOKENS.
choose_workers() {
    local num_gpus=0
    if [[ -z $CPU ]]; then
        num_gpus=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())') ||
            fail "$PYTHON cannot import torch"
    fi
    launcher=("$PYTHON")
    if [[ $num_gpus -eq 0 ]]; then
        WORKERS=${WORKERS:-1}
        PRECISION=${PRECISION:-fp32}
        device=(--cpu)
        keep_memory
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
}

pieces() {
    PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m specdec_plugins.corpus.checkpoints piece "$@"
}

# Before train.py. Where training is cut into pieces: SAVE_DIR/checkpoint_last.pt from weights.pt
# that have travelled here, and the flags that end this piece at UNTIL.
open_piece() {
    local flags
    SCHEDULE=inverse_sqrt
    piece_flags=()
    in_pieces=
    [[ $UNTIL -ne 0 || -f $SAVE_DIR/weights.pt ]] || return 0
    in_pieces=1
    # The same schedule, which warms up again where a piece began with weights alone.
    SCHEDULE=inverse_sqrt_restarts
    flags=$(pieces open "$SAVE_DIR" --until "$UNTIL")
    read -r -a piece_flags <<<"$flags"
}

train() {
    say "$UPDATES updates of $BATCH_TOKENS tokens, $WORKERS worker(s), $PRECISION"
    "${launcher[@]}" "$ROOT/train.py" "$@" --lr-scheduler "$SCHEDULE" --max-update "$UPDATES" \
        --max-tokens "$MAX_TOKENS" --update-freq "$update_freq" --seed "$SEED" \
        --save-dir "$SAVE_DIR" "${device[@]}" "${piece_flags[@]}" "${FLAGS[@]}"
}

# After it: what travels, and the record. Exit status 75 where updates are left to do.
close_piece() {
    [[ -z $in_pieces ]] || pieces close "$SAVE_DIR" --updates "$UPDATES"
}
