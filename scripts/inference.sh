#!/usr/bin/env bash
# Translate a file with the published settings. The variables below can be set in the environment;
# flags override them, and every other flag of inference.py can be added:
#   scripts/inference.sh --beta 3 --tau 1.0 --block-size 15
#   input_path=my.bpe.en output_path=my.de scripts/inference.sh --strategy AR
set -euo pipefail

data_dir=${data_dir:-data/wmt14.en-de}             # folder with dict.en.txt and dict.de.txt, or a
                                                   # bundle, which brings all but the input
checkpoint_path=${checkpoint_path:-}               # the drafter: checkpoints/drafter.pt
AR_checkpoint_path=${AR_checkpoint_path:-}         # the verifier: checkpoints/verifier.pt
input_path=${input_path:-$data_dir/test.en}        # a sentence a line: BPE text; for a bundle, raw
output_path=${output_path:-output/test.de}

strategy=${strategy:-specdec} # fairseq, AR, specdec, drafter
batch=${batch:-1}
beam=${beam:-5}               # strategy fairseq only

beta=${beta:-1}               # 1 = exactly the verifier's greedy output
tau=${tau:-0.0}
block_size=${block_size:-}    # empty = what the drafter was trained for

src=${src:-}                  # en
tgt=${tgt:-}                  # de

text=()
if [[ ! -f $data_dir/bundle.json ]]; then
    checkpoint_path=${checkpoint_path:-checkpoints/drafter.pt}
    AR_checkpoint_path=${AR_checkpoint_path:-checkpoints/verifier.pt}
    src=${src:-en}
    tgt=${tgt:-de}
    text=(--remove-bpe)
fi

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
if [[ -z ${PYTHON:-} && -x $root/.venv/bin/python ]]; then
    python=$root/.venv/bin/python
fi

# Only the default folder is made here: another place is the caller's to name rightly.
if [[ $output_path == output/* ]]; then
    mkdir -p output
fi

exec "$python" "$root/inference.py" "$data_dir" \
    ${checkpoint_path:+--path "$checkpoint_path"} \
    ${AR_checkpoint_path:+--AR-path "$AR_checkpoint_path"} \
    --input-path "$input_path" --output-path "$output_path" \
    ${src:+--source-lang "$src"} ${tgt:+--target-lang "$tgt"} "${text[@]}" \
    --strategy "$strategy" --batch "$batch" --beam "$beam" --beta "$beta" --tau "$tau" \
    ${block_size:+--block-size "$block_size"} "$@"
