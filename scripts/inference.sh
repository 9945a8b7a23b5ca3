#!/usr/bin/env bash
# Translate a file with the published settings. The variables below can be set in the environment;
# flags override them, and every other flag of inference.py can be added:
#   scripts/inference.sh --beta 3 --tau 1.0 --block-size 15
#   input_path=my.bpe.en output_path=my.de scripts/inference.sh --strategy AR
set -euo pipefail

data_dir=${data_dir:-data/wmt14.en-de}             # folder with dict.en.txt and dict.de.txt
checkpoint_path=${checkpoint_path:-checkpoints/drafter.pt}        # the drafter
AR_checkpoint_path=${AR_checkpoint_path:-checkpoints/verifier.pt} # the verifier
input_path=${input_path:-$data_dir/test.en}        # BPE text, a sentence a line
output_path=${output_path:-output/test.de}

strategy=${strategy:-specdec} # fairseq, AR, specdec, drafter
batch=${batch:-1}
beam=${beam:-5}               # strategy fairseq only

beta=${beta:-1}               # 1 = exactly the verifier's greedy output
tau=${tau:-0.0}
block_size=${block_size:-}    # empty = what the drafter was trained for

src=${src:-en}
tgt=${tgt:-de}

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
    --path "$checkpoint_path" --AR-path "$AR_checkpoint_path" \
    --input-path "$input_path" --output-path "$output_path" \
    --source-lang "$src" --target-lang "$tgt" --remove-bpe \
    --strategy "$strategy" --batch "$batch" --beam "$beam" --beta "$beta" --tau "$tau" \
    ${block_size:+--block-size "$block_size"} "$@"
