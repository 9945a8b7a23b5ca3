#!/usr/bin/env bash
# Translate a file with the published settings. The variables below can be set in the environment;
# flags override them, and every other flag of inference.py can be added:
#   scripts/inference.sh --beta 3 --tau 1.0 --block-size 15
#   scripts/inference.sh models/mine --input-path my.en       # the folder of data_dir comes first
#   data_dir=work/mine/data-bin output_path=my.de scripts/inference.sh --strategy AR
set -euo pipefail

# The defaults are the output of scripts/prepare-wmt14-en-de.sh, and of scripts/train-verifier.sh and
# scripts/train.sh with the folders of the README (--save-dir verifier, drafter).
[[ ${1:--} == -* ]] || { data_dir=$1 && shift; }
data_dir=${data_dir:-work/wmt14-en-de/data-bin}    # folder with dict.en.txt and dict.de.txt, or a
                                                   # bundle, which holds all but the input
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

# Only the default folder is created here, and only if it is written to; others must exist.
case " $* " in
    *" --help "* | *" -h "* | *" --output-path"*) ;;
    *) [[ $output_path != output/* ]] || mkdir -p output ;;
esac

scripts=$(dirname -- "${BASH_SOURCE[0]}")
"$scripts/python.sh" "$scripts/../inference.py" "$data_dir" \
    ${checkpoint_path:+--path "$checkpoint_path"} \
    ${AR_checkpoint_path:+--AR-path "$AR_checkpoint_path"} \
    ${input_path:+--input-path "$input_path"} ${output_path:+--output-path "$output_path"} \
    ${src:+--source-lang "$src"} ${tgt:+--target-lang "$tgt"} "${text[@]}" \
    --strategy "$strategy" --batch "$batch" --beam "$beam" --beta "$beta" --tau "$tau" \
    ${block_size:+--block-size "$block_size"} "$@" && exit
status=$?
if ((status == 2)); then # bad input, which inference.py has explained
    echo "inference.sh: files can also be set in the environment: data_dir=FOLDER checkpoint_path=FILE" \
        "AR_checkpoint_path=FILE input_path=FILE output_path=FILE" >&2
fi
exit "$status"
