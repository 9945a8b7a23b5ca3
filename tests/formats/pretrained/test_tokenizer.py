"""Our tokenizers give what transformers' give, on a thousand lines of seven scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app.codec import PretrainedCodec
from specdec_plugins.formats.pretrained.config import read_config
from specdec_plugins.formats.pretrained.languages import published
from specdec_plugins.formats.pretrained.tokenizer import PretrainedTokenizer, read_tokenizer
from tests.formats.pretrained.toys import (
    EDGES,
    bart_files,
    byt5_files,
    lines_of,
    m2m_files,
    marian_files,
    nllb_files,
    small_model,
    spm_files,
    t5_files,
)
from tests.refusals import refused

LINES = lines_of()


@dataclass(frozen=True)
class Ids:
    """As much of a model's configuration as a tokenizer reads."""

    model_type: str
    vocab_size: int
    decoder_vocab_size: int
    decoder_start_token_id: int = 2
    pad_token_id: int = 1
    forced_bos_token_id: int | None = None
    prefixes: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A kind of folder, and how transformers reads it."""

    model_type: str
    write: Callable[[Path, Sequence[str]], None]
    cls: str
    source: str | None = None
    target: str | None = None
    saved: bool = False  # by transformers itself, so that there is a tokenizer.json
    edges: bool = True  # the same at what is no ordinary text, too
    more: tuple[tuple[str, Any], ...] = ()  # of tokenizer_config.json
    prefix: str = ""  # of a source, where it names the target
    tasks: bool = False  # the prefixes are in its config.json

    def read(self, folder: Path) -> tuple[PretrainedTokenizer, Any]:
        """Ours and theirs."""
        import transformers

        folder.mkdir()
        self.write(folder, LINES)
        languages = {"src_lang": self.source, "tgt_lang": self.target, **dict(self.more)}
        given = {} if self.source is None else languages
        theirs = getattr(transformers, self.cls).from_pretrained(folder, **given)
        if self.saved:
            theirs.save_pretrained(folder.with_name("saved"))
            folder = folder.with_name("saved")
            theirs = getattr(transformers, self.cls).from_pretrained(folder, **given)
        sizes = len(theirs), len(getattr(theirs, "target_encoder", theirs))
        start = theirs.pad_token_id if self.model_type == "marian" else 2
        ids = Ids(self.model_type, *sizes, start, prefixes=TASKS if self.tasks else {})
        return read_tokenizer(folder, ids), theirs


TASKS = {
    ("en", "de"): "translate English to German: ",
    ("en", "fr"): "translate English to French: ",
}


def small100_files(folder: Path, lines: Sequence[str]) -> None:
    m2m_files(folder, lines, published("m2m100"))
    path = folder / "tokenizer_config.json"
    named = {"tokenizer_class": "SMALL100Tokenizer"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **named}))


M2M = partial(m2m_files, codes=published("m2m100"))
NLLB = partial(nllb_files, codes=published("nllb200"))
MBART, MBART50 = (
    partial(spm_files, name=f"{name}Tokenizer", kind="unigram") for name in ("MBart", "MBart50")
)
MADLAD = partial(t5_files, codes=["de", "zh_Latn"])
HUB = {
    "marian": Case("marian", marian_files, "MarianTokenizer"),
    "m2m100": Case("m2m_100", M2M, "M2M100Tokenizer", "de", "ko"),
    "nllb": Case("m2m_100", NLLB, "NllbTokenizer", "deu_Latn", "kor_Hang", edges=False),
    "mbart": Case("mbart", MBART, "MBartTokenizer", "de_DE", "ko_KR", edges=False),
    "mbart50": Case("mbart", MBART50, "MBart50Tokenizer", "de_DE", "ko_KR", edges=False),
    "bart": Case("bart", bart_files, "BartTokenizer"),
    "t5": Case("t5", t5_files, "T5Tokenizer"),
}
SAVED = {f"{name}, saved": replace(case, saved=True, edges=True) for name, case in HUB.items()}
CASES = {
    **HUB,
    **SAVED,
    "marian, two vocabularies": replace(HUB["marian"], write=partial(marian_files, separate=True)),
    # M2M-100's with the target's language where that has the source's.
    "small100": Case("m2m_100", small100_files, "M2M100Tokenizer", "ko", "ko"),
    "nllb, legacy": replace(SAVED["nllb, saved"], more=(("legacy_behaviour", True),)),
    "mt5": Case("mt5", partial(t5_files, extra_ids=0), "T5Tokenizer"),
    "madlad, saved": Case("t5", MADLAD, "T5Tokenizer", None, "de", saved=True, prefix="<2de> "),
    "byt5": Case("t5", byt5_files, "ByT5Tokenizer"),
    "t5, tasks": Case(
        *("t5", t5_files, "T5Tokenizer", None, "de"), prefix=TASKS["en", "de"], tasks=True
    ),
    "byt5, tasks": Case(
        *("t5", byt5_files, "ByT5Tokenizer", "en", "French"),
        **{"prefix": TASKS["en", "fr"], "tasks": True, "edges": False},  # a mark takes its space
    ),
}


@pytest.fixture(scope="session", params=CASES.values(), ids=CASES)
def pair(request: Any, tmp_path_factory: Any) -> tuple[Case, PretrainedTokenizer, Any]:
    pytest.importorskip("transformers")
    return request.param, *request.param.read(tmp_path_factory.mktemp("tokenizer") / "hub")


def test_sources_are_encoded_alike(pair: Any) -> None:
    case, mine, theirs = pair
    source, target = mine.languages.choose(case.source, case.target)
    order = mine.source_order
    for line in LINES + EDGES * case.edges:
        if case.cls == "ByT5Tokenizer" and line.endswith("</s>"):
            continue  # it adds no second one
        ids = mine.framed(mine.encode(line), source, target)
        assert [order[i] for i in ids] == theirs(case.prefix + line)["input_ids"], line


def test_targets_are_encoded_alike(pair: Any) -> None:
    case, mine, theirs = pair
    order = mine.target_order
    for line in LINES[::5] + EDGES * case.edges:
        expected = theirs(text_target=line, add_special_tokens=False)["input_ids"]
        assert [order[i] for i in mine.encode_target(line)] == expected, line


def test_targets_are_decoded_alike(pair: Any) -> None:
    """Also sequences that no text gives, with special tokens anywhere."""
    case, mine, theirs = pair
    order = mine.target_order
    texts = LINES[::3] + EDGES * case.edges
    rows = [theirs(text_target=text)["input_ids"] for text in texts]
    size = max(order) + 1
    rows += [[(7 * i * i + 13 * row) % size for i in range(20)] for row in range(300)]
    ids = {theirs: index for index, theirs in enumerate(order)}
    for row in rows:
        expected = theirs.decode(row, skip_special_tokens=True)
        assert mine.decode([ids[i] for i in row]) == expected, row


def test_a_target_begins_with_its_language(pair: Any) -> None:
    case, mine, theirs = pair
    _, target = mine.languages.choose(case.source, case.target)
    first = [mine.target_order[i] for i in mine.first_ids(target)]
    token = f"__{target}__" if "M2M" in case.cls else target
    is_first = case.target is not None and not mine.kind.target_opens_source
    is_first = is_first and not case.tasks
    assert first == ([theirs.convert_tokens_to_ids(token)] if is_first else [])


@pytest.mark.parametrize(
    ("name", "codes"), [("Nllb", "nllb200"), ("MBart", "mbart25"), ("MBart50", "mbart50")]
)
def test_a_folder_that_lists_no_languages_has_the_published_ones(
    tmp_path: Path, name: str, codes: str
) -> None:
    """Behind sentencepiece's pieces, `<mask>` last, as fairseq has them."""
    spm_files(tmp_path, LINES, f"{name}Tokenizer", "unigram")
    known = published(codes)
    size = 901 + len(known) + 1
    tokenizer = read_tokenizer(tmp_path, Ids("mbart", size, size))
    assert tokenizer.target.symbols[901:] == [*known, "<mask>"]
    assert tokenizer.languages.targets == tuple(known)


@pytest.mark.parametrize("place", ["tokenizer_config.json", "config.json"])
def test_a_tokenizer_of_another_class_is_refused_by_name(tmp_path: Path, place: str) -> None:
    """As for SMaLL-100, such a model may have M2M-100's files and expect other languages."""
    codes = published("m2m100")
    m2m_files(tmp_path, LINES, codes)
    size = len(json.loads((tmp_path / "vocab.json").read_text())) + len(codes)
    settings = tmp_path / "tokenizer_config.json"
    found = json.loads(settings.read_text())
    del found["tokenizer_class"]
    for name in ("OtherTokenizer", "PreTrainedTokenizerFast"):
        settings.write_text(json.dumps(found))
        (tmp_path / place).write_text(json.dumps({**found, "tokenizer_class": name}))
        given = (tmp_path, Ids("m2m_100", size, size))
        if name.startswith("Other"):
            refused("tokenizer_class 'OtherTokenizer' is not supported", read_tokenizer, *given)
        else:  # a name that tells nothing
            assert read_tokenizer(*given).languages.targets == tuple(codes)


def test_a_task_of_t5_is_chosen_by_its_languages(tmp_path: Path) -> None:
    """Without any, a text says itself what is to be done, as in transformers."""
    small_model(tmp_path, "t5")
    tasks = {f"translation_{s}_to_{t}": {"prefix": prefix} for (s, t), prefix in TASKS.items()}
    tasks |= {"translation_de_to_fr": {"prefix": "<de> "}, "summarization": {"prefix": "sum: "}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task_specific_params": tasks}))
    codec = PretrainedCodec(read_tokenizer(tmp_path, read_config(tmp_path)))
    told = codec.source_ids(TASKS["en", "de"] + "Zwei.")
    assert (codec.languages.sources, codec.languages.targets) == (("en", "de"), ("de", "fr"))
    assert codec.source_ids("Zwei.") == told[-len(codec.source_ids("Zwei.")) :] != told
    for source, target in (("en", "de"), (None, "German"), ("en_US", "deu")):
        own = PretrainedCodec(codec.tokenizer, source, target)
        assert own.source_ids("Zwei.") == told
        assert own.source_ids(TASKS["en", "de"] + "Zwei.") == told  # once
    for languages, message in (
        ((None, "fr"), "several source languages; choose one, .*: en, de"),
        (("en", None), "several target languages; choose one, .*: de, fr"),
        (("de", "de"), "does not translate from de to de; choose one of: en to de, en to fr, de"),
        (("en", "ko"), "does not write 'ko'; give a target language of: de, fr, or no language"),
    ):
        refused(
            message, lambda pair=languages: PretrainedCodec(codec.tokenizer, *pair).source_ids("a")
        )
