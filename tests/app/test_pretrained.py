"""Folders of transformers through every door: the texts are those of `generate`."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app import convert, main
from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.loading import origin
from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.corpus.resume import first_difference
from specdec_plugins.errors import warn_once
from specdec_plugins.formats.exports import import_transformers
from specdec_plugins.serving import cli, translate
from tests.formats.pretrained.toys import SMALL, lines_of
from tests.refusals import refused, told

pytestmark = pytest.mark.usefixtures("one_thread")
Small = Callable[[str], Path]
LINES = lines_of(21)
# What is asked for, and the target's language as its token is called.
LANGUAGES: dict[str, tuple[str | None, str | None]] = {
    "marian-three-targets": (None, "kor"),
    "m2m100": ("de", "ko"),
    "nllb": ("deu_Latn", "kor_Hang"),
    "mbart50": ("de_DE", "ko_KR"),
    "mbart": ("de_DE", None),
    "madlad": (None, "ko"),
}


def generated(
    folder: Path, name: str, lines: Sequence[str], source: str | None, target: str | None
) -> list[str]:
    """What transformers makes of the lines, in one ragged batch."""
    transformers = import_transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).double().eval()
    forced = {}
    if source is not None:
        tokenizer.src_lang = source
    if name == "marian-three-targets":
        lines = [f">>{target}<< {line}" for line in lines]
    elif name == "madlad":
        lines = [f"<2{target}> {line}" for line in lines]
    elif target is not None:
        token = f"__{target}__" if name == "m2m100" else target
        forced = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    ids = {name: batch[name] for name in ("input_ids", "attention_mask")}
    rows = model.generate(**ids, num_beams=1, do_sample=False, **forced)
    return list(tokenizer.batch_decode(rows, skip_special_tokens=True))


def translator(folder: Path, **settings: Any) -> SpeculativeTranslator:
    # Their weights are random, so they say one thing again and again.
    how = {"batch": 4, "dtype": "float64", "device": "cpu", "protect": False, **settings}
    return SpeculativeTranslator.from_pretrained(str(folder), **how)


@pytest.mark.parametrize("name", SMALL)
def test_texts_are_those_of_generate(small: Small, name: str) -> None:
    """Token by token and in drafted blocks; a ragged batch that rows join and leave."""
    source, target = LANGUAGES.get(name, (None, None))
    expected = generated(small(name), name, LINES, source, target)
    assert len({*expected}) > len(LINES) / 3  # not the same word for everything
    # Cut where `generate` cuts; by default what reaches that limit is translated in pieces.
    _, most = make_settings({"data": str(small(name))}).max_lens
    for drafting in ({}, {"drafter": "lookup", "block_size": 4}):
        how = {"source_lang": source, "target_lang": target, "max_len_b": most, **drafting}
        made = translator(small(name), **how)
        assert [str(translation) for translation in made.translate(LINES)] == expected, drafting
        streamed = [*made.stream(LINES[0])][-1] if drafting else expected[0]
        assert streamed == expected[0]


@pytest.mark.parametrize("name", ["marian-three-targets", "m2m100", "nllb", "mbart50", "madlad"])
def test_each_row_of_a_batch_has_its_own_languages(small: Small, name: str) -> None:
    """A language stands for itself or, where it is the only one of these, for two letters."""
    made = translator(small(name), batch=6, max_len_b=24)  # so that nothing is divided
    pairs = [("de", "ko"), ("ko", "fr"), ("fr", "de")]
    if name in ("marian-three-targets", "madlad"):
        pairs = [("en", target) for _, target in pairs]
    alone = {
        pair: made.translate(LINES[:4], source_lang=pair[0], target_lang=pair[1]) for pair in pairs
    }
    rows = number_sentences([line for line in LINES[:4] for _ in pairs])
    mixed = made.translate_sentences(
        [
            replace(row, source_lang=pairs[i % 3][0], target_lang=pairs[i % 3][1])
            for i, row in enumerate(rows)
        ]
    )
    for column, pair in enumerate(pairs):
        assert [str(t) for t in mixed[column::3]] == [str(t) for t in alone[pair]]
    texts = [tuple(map(str, translations)) for translations in alone.values()]
    assert len({*texts}) == 3


@pytest.mark.parametrize(
    ("file", "role"), [("model.safetensors", "verifier"), ("tokenizer.json", "tokenizer")]
)
def test_another_model_in_the_same_place_is_another_origin(
    file: str, role: str, small: Small, tmp_path: Path
) -> None:
    folder = shutil.copytree(small("nllb"), tmp_path / "copy")
    settings = make_settings({"data": str(folder)})
    before = origin(settings)
    assert before == origin(make_settings({"data": str(small("nllb"))}))
    (folder / file).write_bytes(b"?" + (folder / file).read_bytes()[1:])
    assert first_difference(before["contents"], origin(settings)["contents"]) == role


def test_neither_transformers_nor_fairseq_is_needed(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [small(name) for name in SMALL]
    for package in ("transformers", "fairseq"):
        monkeypatch.setitem(sys.modules, package, None)  # whoever imports it fails
    said = []
    for folder, name in zip(folders, SMALL, strict=True):
        source, target = LANGUAGES.get(name, (None, None))
        made = translator(folder, max_len_b=24)
        said += [*made.stream(LINES[0], source_lang=source, target_lang=target)][-1:]
        tokens = made.codec.tokenizer.target  # type: ignore[attr-defined]
        assert tokens.symbols[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert len({*said}) > len(SMALL) / 2


def test_every_command_takes_a_folder_and_the_bundle_made_of_it(
    small: Small, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bundle = small("nllb"), tmp_path / "bundle"
    (tmp_path / "in").write_text("\n".join(LINES) + "\n")
    assert convert.BUNDLE.run([str(folder), "--output", str(bundle)]) == 0
    settings = json.loads((bundle / "bundle.json").read_text())
    assert (settings["version"], settings["text"]["tokenizer"]) == (3, "pretrained")
    languages = ["--source-lang", "de", "--target-lang", "ko"]
    outputs = {}
    for place in (folder, bundle):
        paths = ["--input-path", str(tmp_path / "in"), "--output-path", str(tmp_path / "out")]
        assert main.inference([str(place), *languages, "--cpu", *paths]) in (0, 1)  # 1: cut
        assert "greedy means no token that its generation config bans" in capfd.readouterr().err
        outputs[place, "inference.py"] = (tmp_path / "out").read_text()
        with (tmp_path / "in").open() as piped, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", piped)
            words = [str(place), *languages, "--cpu", "--no-split", "--no-protect"]
            assert translate.main(words) in (0, 1)
        outputs[place, "pipe"] = capfd.readouterr().out
    assert len({*outputs.values()}) == 1, outputs
    refused_by = told(capfd, convert.FAIRSEQ.run, [str(bundle), "--output", str(tmp_path / "c")])
    assert "was made from a transformers model; convert" in refused_by


def test_what_generation_asks_for_is_the_default(small: Small, caplog: Any) -> None:
    warn_once.cache_clear()  # it is told once
    made = translator(small("bart"))
    assert (made.settings.max_len_b, made.settings.min_len) == (23, 7)
    assert "asks for a beam search (num_beams 4)" in caplog.text
    assert all(len(t.tokens) >= 6 for t in made.translate(LINES[:3]))
    assert translator(small("bart"), max_len_b=9, min_len=1).settings.max_len_b == 9


def test_lines_without_words_and_lines_that_are_too_long(small: Small) -> None:
    ways = {"source_lang": "de", "target_lang": "ko", "split": False}
    made = translator(small("nllb"), **ways, truncate_source=True)
    empty, long, cut = made.translate(["  ", "и " * 140, "и " * 64])
    assert (empty.text, empty.finish_reason) == ("  ", "empty")
    assert long.text == cut.text  # of 128 positions the language and the end have two
    strict = translator(small("nllb"), **ways, on_unreadable="fail")
    message = r"sentence 1: has \d+ tokens, more than the 126"
    refused(message, strict.translate, ["и" * 300])
    assert strict.translate(["и " * 140])[0].finish_reason == "length"  # of one-word pieces
    tokens = strict.codec.tokenizer.source.symbols[10:14]  # type: ignore[attr-defined]
    assert strict.translate_tokens([tokens])[0].tokens


def test_what_a_target_must_begin_with(small: Small) -> None:
    """Behind its language; in the form of the input."""
    made = translator(small("nllb"), source_lang="de", target_lang="ko", max_len_b=30)
    [sentence] = number_sentences(LINES[:1])
    begin = " ".join(LINES[6].split()[:2])
    for prefix in (None, begin):
        [done] = made.translate_sentences([replace(sentence, prefix=prefix)])
        assert done.text.startswith(prefix or "")
        assert "kor_Hang" not in done.tokens
    for unknown in ("xx", 3):
        refused(f"does not read {unknown!r}", made.translate, ["a"], source_lang=unknown)
    only = translator(small("mbart"), source_lang="de")
    refused(
        "does not write 'fr_XX'; give a target language of: ko_KR",
        only.translate,
        ["a"],
        **{"target_lang": "fr_XX"},
    )


def test_languages_that_the_model_does_not_have(small: Small) -> None:
    message = "the model nllb does not write 'xx'; give a target language of: ace_Arab, ace_Latn"
    refused(message, translator, small("nllb"), target_lang="xx")
    made = translator(small("nllb"))
    refused(message, made.translate, ["a"], target_lang="xx")
    message = "sentence 1: the model nllb has several target languages; choose one"
    refused(message, made.translate, ["a"], source_lang="de")
    # MarianMT's sources may say it themselves.
    made = translator(small("marian-three-targets"), target_lang="deu")
    own, other = made.translate([">>kor<< A", "A"])
    assert str(own) == str(made.translate(["A"], target_lang="kor")[0])
    assert str(other) != str(own)
    refused("does not write 'fr'.* of: de", translator, small("marian"), target_lang="fr")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ᚠᚢᚦ ᚠᚢᚦ", "sentence 1: the tokenizer of the model marian knows no letter of 'ᚠᚢᚦ ᚠᚢᚦ'"),
        ("a <pad> b", "sentence 1: the text contains the padding token, which the model"),
        ("half \ud83d", r"holds half a surrogate pair \('\\ud83d'\)"),
    ],
)
def test_text_that_is_none_to_the_tokenizer(small: Small, line: str, message: str) -> None:
    as_it_is = translator(small("marian"), on_unreadable="fail")
    refused(message, as_it_is.translate, [line])
    assert translator(small("marian")).translate(["♪ 12"])  # no letters, no language


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no model": ("marian", lambda f: [p.unlink() for p in f.iterdir()], "holds no bundle.json and"),
    "another type": (
        "marian",
        lambda f: (f / "config.json").write_text('{"model_type": "longt5"}'),
        r"config.json: models of type 'longt5' are not supported \(its attention is local\)",
    ),
    "no pieces": ("marian", lambda f: (f / "target.spm").unlink(), "target.spm: there is no such"),
    "cut pieces": ("marian", lambda f: _cut(f / "source.spm", 100), "source.spm: knows 7 of the"),
    "other pieces": (
        *("marian", lambda f: (f / "source.spm").write_text("{}")),
        "source.spm: not a sentencepiece model",
    ),
    "no vocabulary": ("m2m100", lambda f: (f / "vocab.json").unlink(), "vocab.json: there is no"),
    "other vocabulary": (
        *("m2m100", lambda f: (f / "vocab.json").write_text('{"a": "b"}')),
        "vocab.json: expected symbols and their ids",
    ),
    "larger vocabulary": (
        "marian",
        lambda f: (f / "vocab.json").write_text(
            json.dumps(json.loads((f / "vocab.json").read_text()) | {"more": 5000})
        ),
        "the tokenizer has 1 more tokens than the model's",
    ),
    "smaller vocabulary": (
        *("marian", lambda f: (f / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')),
        "the tokenizer has only 3 of the model's 998 tokens",
    ),
    "no tokenizer": ("nllb", lambda f: (f / "tokenizer.json").write_text("{}"), "json: not a tok"),
    "settings": ("nllb", lambda f: (f / "tokenizer_config.json").write_text("{"), "json: not JSON"),
    "no merges": ("bart", lambda f: (f / "merges.txt").unlink(), "merges.txt: there is no such"),
    "other merges": (
        *("bart", lambda f: (f / "merges.txt").write_text("#version: 0.2\nqqq www\n")),
        "merges.txt: does not fit the vocabulary",
    ),
    "a first token that is none": (
        "bart",
        lambda f: (f / "generation_config.json").write_text(
            json.dumps({"forced_bos_token_id": 99999, "decoder_start_token_id": 2})
        ),
        "token 99999, which it does not have; correct forced_bos_token_id",
    ),
    "no weights": ("bart", lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_at_fault_is_said_in_a_sentence_and_nothing_is_written(
    small: Small, tmp_path: Path, fault: str, capsys: Any
) -> None:
    name, spoil, message = FAULTS[fault]
    folder = tmp_path / "model"
    shutil.copytree(small(name), folder)
    spoil(folder)
    (tmp_path / "in").write_text("A line\n")
    paths = ["--input-path", str(tmp_path / "in"), "--output-path", str(tmp_path / "out")]
    languages = ["-s", "de", "-t", "ko"] if name in ("m2m100", "nllb") else []
    error = told(capsys, main.inference, [str(folder), "--cpu", *languages, *paths])
    assert re.search(message, error), error
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in", "model"]
    if fault != "no model":
        error = told(capsys, convert.BUNDLE.run, [str(folder), "--output", str(tmp_path / "b")])
        assert re.search(message, error), error
        assert not [*tmp_path.glob("*b*")]


def test_a_server_says_at_once_what_is_wrong(small: Small, capsys: Any) -> None:
    message = "the model marian does not read 'fr'; give a source language of: en"
    said = told(capsys, cli.main, [str(small("marian")), "--source-lang", "fr"])
    assert f"specdec serve: error: {message}" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer": "moses"}, "has a tokenizer of its own; omit tokenizer"),
        ({"remove_bpe": "@@ "}, "has a tokenizer of its own; omit remove_bpe"),
        ({"drafter": "block"}, "needs the drafter's checkpoint; give it with drafter_checkpoint"),
    ],
)
def test_settings_that_no_such_folder_takes(
    small: Small, settings: dict[str, Any], message: str
) -> None:
    refused(message, translator, small("marian"), **settings)
