"""specdec convert bigrams, from binarised data to a file that drafting gets faster by."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.app import convert
from specdec_plugins.app.loading import make_settings
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import load_translator
from specdec_plugins.formats.bigrams import count_bigrams, read_bigrams
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.indexed import SentenceWriter
from tests.bundles import CAPTIONS, ROOT
from tests.programs import specdec
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

SAMPLES = (ROOT / "data" / "samples" / "en-de.tsv").read_text(encoding="utf-8").splitlines()
LINES = [line.split("\t")[0] for line in SAMPLES[1:13]]  # unlike captions, so drafts are poor


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """Binarised output of the caption verifier, and its tokens."""
    folder = tmp_path_factory.mktemp("spoken")
    translator = load_translator(settings(strategy="AR"))
    tokens = [list(result.tokens) for result in translator.translate(LINES)]
    for side, lines in (("en", [["w"]] * len(tokens)), ("de", tokens)):
        shutil.copy(CAPTIONS / f"dict.{side}.txt", folder)
        dictionary = Dictionary.load(folder / f"dict.{side}.txt")
        with SentenceWriter(folder / f"train.en-de.{side}", len(dictionary)) as writer:
            for line in lines:
                writer.add(dictionary.encode_line(" ".join(line)))
    return folder, tokens


def settings(**given: Any) -> Settings:
    fields = {"verifier": str(CAPTIONS / "verifier.pt"), "source_lang": "en", "target_lang": "de"}
    fields |= {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": str(CAPTIONS / "bpe.codes")}
    return make_settings({"data": str(CAPTIONS), "device": "cpu", "batch": 9, **fields, **given})


def test_counts_and_what_they_bring(spoken: tuple[Path, list[list[str]]], tmp_path: Path) -> None:
    data, tokens = spoken
    output = tmp_path / "bigrams.safetensors"
    ended = specdec("convert bigrams", data, "--output", output, cwd=tmp_path)
    assert "pairs" in ended.stderr
    dictionary = Dictionary.load(CAPTIONS / "dict.de.txt")
    ids = [[dictionary.index(t) for t in line] + [dictionary.special.eos] for line in tokens]
    expected = count_bigrams(ids, dictionary)
    found = read_bigrams(output, dictionary)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=1e-3, atol=1e-3)

    drafter = str(CAPTIONS / "drafter.pt")
    rounds = {}
    for bigrams in (None, str(output)):
        translator = load_translator(settings(drafter_checkpoint=drafter, bigrams=bigrams))
        assert [list(r.tokens) for r in translator.translate(LINES)] == tokens
        rounds[bigrams] = translator.stats.rounds
    assert rounds[str(output)] < rounds[None]


def test_what_is_refused(tmp_path: Path) -> None:
    for name in ("en", "de"):
        (tmp_path / f"dict.{name}.txt").write_text("w1 5\n")
    words = [tmp_path, "-s", "en", "-t", "de", "--output", tmp_path / "out"]
    refused("no binarised sentences; give a folder", convert.BIGRAMS_OF, *words)
    assert not (tmp_path / "out").exists()
    refused("--bigrams is for --drafter block", settings, drafter="lookup", bigrams="b")
