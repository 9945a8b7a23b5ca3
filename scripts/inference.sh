#!/usr/bin/env bash
# Translate a file with the published settings. The variables below can be set in the environment;
# flags override them, and every other flag of inference.py can be added:
#   scripts/inference.sh --beta 3 --tau 1.0 --block-size 15
#   data_dir=work/mine/data-bin output_path=my.de scripts/inference.sh --strategy AR
set -euo pipefail

# The defaults are what scripts/prepare-wmt14-en-de.sh writes, and trainings with the folders that
# the README gives scripts/train-verifier.sh and scripts/train.sh (--save-dir verifier, drafter).
data_dir=${data_dir:-work/wmt14-en-de/data-bin}    # folder with dict.en.txt and dict.de.txt, or a
                                                   # bundle, which brings all but the input
checkpoint_path=${checkpoint_path:-}               # the drafter: drafter/checkpoint_last.pt
AR_checkpoint_path=${AR_checkpoint_path:-}         # the verifier: verifier/checkpoint_last.pt
input_path=${input_path:-}                         # a sentence a line. BPE text: bpe/test.en beside
                                                   # data_dir; for a bundle raw text: standard input
output_path=${output_path:-}                       # output/test.de; for a bundle standard output

strategy=${strategy:-specdec} # fairseq, AR, specdec, drafter, early-exit
batch=${batch:-1}
beam=${beam:-5}               # strategy fairseq only

beta=${beta:-1}               # 1 = exactly the verifier's greedy output
tau=${tau:-0.0}
block_size=${block_size:-}    # empty = what the drafter was trained for

src=${src:-}                  # en
tgt=${tgt:-}                  # de

fail() {
    echo "inference.sh: error: $1" >&2
    exit 2
}

text=()
if [[ ! -f $data_dir/bundle.json ]]; then
    checkpoint_path=${checkpoint_path:-drafter/checkpoint_last.pt}
    AR_checkpoint_path=${AR_checkpoint_path:-verifier/checkpoint_last.pt}
    src=${src:-en}
    tgt=${tgt:-de}
    input_path=${input_path:-$(dirname -- "$data_dir")/bpe/test.$src}
    output_path=${output_path:-output/test.$tgt}
    text=(--remove-bpe)
fi

given=" " # the flags that override variables
chosen=$strategy
previous=
for argument in "$@"; do
    [[ $previous != --strategy ]] || chosen=$argument
    [[ $argument != --strategy=* ]] || chosen=${argument#*=}
    given+="${argument%%=*} "
    previous=$argument
done

# need VARIABLE FLAG WHAT: refuses a file that is not there, unless the flag overrides the variable
need() {
    local path=${!1} fault="no such file"
    [[ $given != *" $2 "* && -n $path && $path != - ]] || return 0
    [[ ! -d $path ]] || fault="a folder"
    [[ -e $path && ! -d $path ]] || fail "$path: $fault; set $1=FILE, $3"
}

if [[ $given != *" --help "* && $given != *" -h "* ]]; then
    [[ -d $data_dir ]] ||
        fail "$data_dir: no such folder; set data_dir=FOLDER, a data-bin with dictionaries or a bundle"
    case $chosen$given in # --drafter: some need no checkpoint, and inference.py knows which
        *" --drafter "* | AR* | fairseq* | early-exit*) ;;
        *) need checkpoint_path --path "the drafter's checkpoint" ;;
    esac
    [[ $chosen == drafter ]] || need AR_checkpoint_path --AR-path "the verifier's checkpoint"
    need input_path --input-path "the text to translate, a sentence a line"
    # Only the default folder is made here, and only where it is written to: another place is the
    # caller's to name rightly.
    if [[ $given != *" --output-path "* && $output_path == output/* ]]; then
        mkdir -p output
    fi
fi

scripts=$(dirname -- "${BASH_SOURCE[0]}")
exec "$scripts/python.sh" "$scripts/../inference.py" "$data_dir" \
    ${checkpoint_path:+--path "$checkpoint_path"} \
    ${AR_checkpoint_path:+--AR-path "$AR_checkpoint_path"} \
    ${input_path:+--input-path "$input_path"} ${output_path:+--output-path "$output_path"} \
    ${src:+--source-lang "$src"} ${tgt:+--target-lang "$tgt"} "${text[@]}" \
    --strategy "$strategy" --batch "$batch" --beam "$beam" --beta "$beta" --tau "$tau" \
    ${block_size:+--block-size "$block_size"} "$@"
