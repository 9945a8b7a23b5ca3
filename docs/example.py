"""Translate from Python with the caption models of this repository: python docs/example.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # not needed where the package is installed

from specdec_plugins import SpeculativeTranslator  # noqa: E402

FOLDER = ROOT / "benchmarks" / "models" / "captions.en-de"

translator = SpeculativeTranslator.from_pretrained(
    str(FOLDER),
    verifier=str(FOLDER / "verifier.pt"),
    drafter_checkpoint=str(FOLDER / "drafter.pt"),
    source_lang="en",
    target_lang="de",
    tokenizer="moses",
    bpe="subword_nmt",
    bpe_codes=str(FOLDER / "bpe.codes"),
    device="cpu",
    batch=8,  # sentences decoded at once
)

sentences = [
    "Two dogs play in the snow.",
    "A man with a red hat is reading a newspaper on the beach next to a small child.",
]

# Text, tokens and score of each sentence, and how its rounds went.
for translation in translator.translate(sentences):
    print(translation.text)
    print("  tokens", " ".join(translation.tokens))
    print(f"  log-probability {translation.score:.2f}")
    print(f"  drafted {translation.drafted}, of these kept {translation.accepted}")

# What stands after each round.
for text in translator.stream(sentences[1]):
    print("  so far:", text)

# Subword tokens of your own making.
[translation] = translator.translate_tokens([["two", "dogs", "run", "."]])
print(translation.tokens)

# Counts of all calls so far; the rates say what they divide by in their documentation.
stats = translator.stats
print(f"{stats.rounds} rounds, {stats.mean_accepted_tokens:.2f} tokens a round")
