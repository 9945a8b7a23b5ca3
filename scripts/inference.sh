#!/usr/bin/env bash
# Translate a file with the published settings. The first argument may name the folder; every flag of
# inference.py can be added, and goes before these settings:
#   scripts/inference.sh --beta 3 --tau 1.0 --block-size 15
#   scripts/inference.sh models/mine --input-path my.en
#   scripts/inference.sh work/mine/data-bin --strategy AR --output-path my.de
set -euo pipefail

# The defaults are the output of scripts/prepare-wmt14-en-de.sh, and of specdec train verifier and
# scripts/train.sh with the folders of docs/training.md (--save-dir verifier, drafter).
folder=work/wmt14-en-de/data-bin # with dict.en.txt and dict.de.txt, or a bundle
[[ ${1:--} == -* ]] || { folder=$1 && shift; }
settings=(--strategy specdec --batch 1 --beta 1 --tau 0.0)

# A bundle holds all but the input, and is for raw text: standard input.
if [[ ! -f $folder/bundle.json ]]; then
    settings+=(--path drafter/checkpoint_last.pt --AR-path verifier/checkpoint_last.pt
        --source-lang en --target-lang de --remove-bpe
        --input-path "$(dirname -- "$folder")/bpe/test.en" --output-path output/test.de)
    # Only the default folder is created here, and only if it is written to; others must exist.
    case " $* " in
        *" --help "* | *" -h "* | *" --output-path"*) ;;
        *) mkdir -p output ;;
    esac
fi

scripts=$(dirname -- "${BASH_SOURCE[0]}")
exec "$scripts/python.sh" "$scripts/../inference.py" "$folder" "${settings[@]}" "$@"
