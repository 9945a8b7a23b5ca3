"""The tokenizer of a transformers folder: lines to our ids and back, for each of its languages.

Needs the packages sentencepiece or tokenizers, but not transformers. `segmenters.py` encodes and
decodes as the files specify. This module adds what each kind of tokenizer puts around a source,
and which of its tokens are languages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_plugins.errors import UnreadableError, require
from specdec_plugins.formats.dictionaries import Dictionary, dictionary_of, order_of, ours
from specdec_plugins.formats.pretrained.config import CONFIG, PretrainedConfig, model_name
from specdec_plugins.formats.pretrained.languages import Languages, published
from specdec_plugins.formats.pretrained.segmenters import (
    CODES,
    TEXT,
    Added,
    Bytes,
    JsonSegmenter,
    Segmenter,
    Spm,
    SpmSegmenter,
    TextSegmenter,
    byte_bpe,
    read_json,
    read_vocabulary,
    unigram,
)

SETTINGS, SPECIAL, JSON = "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"
SPM, VOCABULARY, ADDED = "sentencepiece.bpe.model", "vocab.json", "added_tokens.json"
T5_SPM = "spiece.model"
TARGET_JSON, TARGET_VOCABULARY = "target_tokenizer.json", "target_vocab.json"
SOURCE_SPM, TARGET_SPM, MERGES = "source.spm", "target.spm", "merges.txt"
# All files that a tokenizer may consist of; a bundle keeps them unchanged.
FILES = (
    *(SETTINGS, SPECIAL, JSON, SPM, VOCABULARY, ADDED, TARGET_JSON, TARGET_VOCABULARY),
    *(SOURCE_SPM, TARGET_SPM, T5_SPM, MERGES, TEXT, CODES),
)

Frame = tuple[list[int], list[int]]  # the ids before a source and after it
_USUAL = {
    **{"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"},
    "mask": "<mask>",
}
_MOSTLY = 0.5  # share of a line's characters: letters; of a model's tokens: those with a symbol


@dataclass(frozen=True)
class Kind:
    """What one kind of tokenizer puts around its sources and targets."""

    languages: str = ""  # regular expression of language tokens; its group is the code
    published: str = ""  # model whose languages a folder has if it lists none
    usual: tuple[str, ...] = tuple(_USUAL)  # special tokens that a folder need not name
    opens_source: bool = False  # the source language comes before the text, not after eos
    target_opens_source: bool = False  # the target language does; the source has no language token


_REGIONS = "([a-z]{2}_[A-Z]{2})"
MARIAN = Kind(">>(.+)<<", "", ("unk", "eos", "pad"), target_opens_source=True)
M2M100 = Kind("__(.+)__", "m2m100", ("bos", "eos", "unk", "sep", "pad"), opens_source=True)
# As M2M-100, but a source begins with the language of its target, and nothing is forced.
SMALL100 = replace(M2M100, opens_source=False, target_opens_source=True)
NLLB = Kind("([a-z]{3}_[A-Z][a-z]{3})", "nllb200", opens_source=True)
MBART50 = Kind(_REGIONS, "mbart50", opens_source=True)
MBART = Kind(_REGIONS, "mbart25")
# MADLAD-400's targets, and their tokens; other models of T5 have none.
T5 = Kind("<2([A-Za-z_]+)>", "", ("eos", "unk", "pad"), target_opens_source=True)
BYT5 = Kind("", "", ("eos", "unk", "pad"))
PLAIN = Kind()  # BART, and every model without languages
_CLASSES = {  # by `tokenizer_class`, without Tokenizer and Fast at its end
    **{"MBart50": MBART50, "MBart": MBART, "Nllb": NLLB, "M2M100": M2M100, "Marian": MARIAN},
    "SMALL100": SMALL100,
    **{"Bart": PLAIN, "Roberta": PLAIN, "T5": T5, "MT5": T5, "ByT5": BYT5},
}
_SMALL = "small100"
# Classes that only say which package computes.
_GENERIC = ("", "PreTrained", "TokenizersBackend", "PythonBackend", "SentencePieceBackend")


class PretrainedTokenizer:
    """The symbols of both sides in our order, and the conversion between lines and ids."""

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        config: PretrainedConfig,
        source: Segmenter,
        target: Segmenter,
    ) -> None:
        """Raises UserError if the files do not fit the model."""
        settings = read_settings(folder)
        self._name, self.kind = f"the model {model_name(folder)}", kind
        self._source, self._target = source, target
        start = config.decoder_start_token_id
        self.source_order = _order(folder, source, config, config.vocab_size, settings)
        self.target_order = self.source_order
        if target.vocabulary is not source.vocabulary:
            size = config.decoder_vocab_size
            self.target_order = _order(folder, target, config, size, settings)
        self.source = dictionary_of(source.vocabulary, self.source_order, start)
        self.target = dictionary_of(target.vocabulary, self.target_order, start)
        self._source_ids, self._target_ids = ours(self.source_order), ours(self.target_order)
        self._codes = self._language_tokens()
        # What the sources of each pair of languages begin with
        self._tasks = {
            pair: [self._source_ids[i] for i in source.encode(prefix)]
            for pair, prefix in config.prefixes.items()
            if not self._codes
        }
        self._openings = self._target_openings()
        self.languages, self._first = self._find_languages(config, settings)
        self._legacy = bool(settings.get("legacy_behaviour"))  # NLLB's language after eos
        self._frame: Frame = ([], [self.source.eos])
        if isinstance(source, JsonSegmenter) and not self._codes:
            before, behind = source.frame()
            ids = self._source_ids
            self._frame = ([ids[i] for i in before], [ids[i] for i in behind])

    def _language_tokens(self) -> dict[str, int]:
        """Our source ids of the language tokens, by their codes."""
        found = dict[str, int]()
        for index, symbol in enumerate(self.source.symbols) if self.kind.languages else ():
            code = re.fullmatch(self.kind.languages, symbol)
            is_special = self.source_order[index] in self._source.special
            if code and (is_special or self.kind in (MARIAN, T5)):
                found[code[1]] = index
        return found

    def _target_openings(self) -> dict[str, list[int]]:
        """Our ids of what a source begins with for each target language."""
        return {
            code: [self._source_ids[i] for i in self._source.encode(self.source.symbols[index])]
            for code, index in self._codes.items()
            if self.kind.target_opens_source
        }

    def _find_languages(
        self, config: PretrainedConfig, settings: Mapping[str, Any]
    ) -> tuple[Languages, dict[str | None, list[int]]]:
        """The languages, and the ids that targets in each begin with; None = any other language."""
        start, forced = self.target.start, config.forced_bos_token_id
        first: dict[str | None, list[int]] = {None: []}
        if forced is not None:
            require(
                forced in self._target_ids,
                f"{self._name} must begin with token {forced}, which it does not have; correct "
                "forced_bos_token_id in its generation_config.json.",
            )
            first[None] = [self._target_ids[forced]]
        codes, by_id = tuple(self._codes), {index: code for code, index in self._codes.items()}
        source = settings.get("source_lang") or settings.get("src_lang")
        target = settings.get("target_lang") or settings.get("tgt_lang")
        sources: tuple[str, ...]
        targets: tuple[str, ...]
        if self._tasks:
            sources, targets = (
                tuple(dict.fromkeys(side)) for side in zip(*self._tasks, strict=True)
            )
            return Languages(self._name, sources, targets, may_lack=True), first
        if self.kind.target_opens_source or not codes:
            sources, targets = (source,) if source else (), codes or ((target,) if target else ())
        elif start in by_id:  # mBART as first fine-tuned: its start token is the language
            sources, targets = codes, (by_id[start],)
        else:
            sources, targets = codes, codes
            target = target or next((by_id[i] for i in first[None] if i in by_id), None)
            first |= {code: [index] for code, index in self._codes.items()}
        return Languages(self._name, sources, targets, source, target), first

    @property
    def num_forced(self) -> int:
        """The number of tokens that every target begins with, whatever its language."""
        return max(map(len, self._first.values()))

    def first_ids(self, target_lang: str | None) -> list[int]:
        """Our ids that a target begins with, whatever the source.

        Raises UserError if its language must be chosen.
        """
        if target_lang is None and len(self._first) > 1:
            raise self.languages.unchosen("target")
        return self._first.get(target_lang, self._first[None])

    def encode(self, line: str) -> list[int]:
        """Our ids of source text, without frame. Raises UnreadableError if it knows no letter."""
        return self._encoded(self._source, self._source_ids, self.source, line)

    def encode_target(self, line: str) -> list[int]:
        """The same for target text."""
        return self._encoded(self._target, self._target_ids, self.target, line)

    def framed(self, ids: Sequence[int], source: str | None, target: str | None) -> list[int]:
        """A source with the ids that the model expects around it; languages under its own names.

        Raises UserError if a language must be chosen. A MarianMT source may itself begin with the
        token of a target language.
        """
        before, behind = self.frame(source, target)
        openings = (*self._openings.values(), *self._tasks.values())
        if any(list(ids[: len(own)]) == own for own in openings):
            before = []
        elif self.kind.target_opens_source and self._codes and target is None:
            raise self.languages.unchosen("target")
        return [*before, *ids, *behind]

    def frame(self, source: str | None, target: str | None) -> Frame:
        """The ids before a source and after it."""
        if not self._codes:
            return self._task(source, target), self._frame[1]
        end = [self.source.eos]
        if self.kind.target_opens_source:
            return ([] if target is None else self._openings[target]), end
        if source is None:
            raise self.languages.unchosen("source")
        language = [self._codes[source]]
        is_before = self.kind.opens_source and not self._legacy
        return (language, end) if is_before else ([], end + language)

    def _task(self, source: str | None, target: str | None) -> list[int]:
        """What a source begins with. Raises UserError if one language leaves a choice."""
        if not self._tasks or (source is None and target is None):
            return self._frame[0]
        pairs = [(s, t) for s, t in self._tasks if (source or s, target or t) == (s, t)]
        if len(pairs) > 1:
            raise self.languages.unchosen("source" if source is None else "target")
        known = ", ".join(f"{s} to {t}" for s, t in self._tasks)
        require(
            bool(pairs),
            f"{self._name} does not translate from {source} to {target}; choose one of: {known}.",
        )
        return self._tasks[pairs[0]]

    def _encoded(
        self, side: Segmenter, known: Mapping[int, int], dictionary: Dictionary, line: str
    ) -> list[int]:
        ids = [known.get(index, dictionary.unk) for index in side.encode(line)]
        if dictionary.unk in ids:
            read = "".join(dictionary.symbols[i] for i in {*ids} - {dictionary.unk})
            visible = [character for character in line if not character.isspace()]
            is_text = sum(map(str.isalpha, visible)) > _MOSTLY * len(visible)
            if is_text and not any(map(str.isalpha, read)):
                raise UnreadableError(
                    f"the tokenizer of {self._name} knows no letter of {line.strip()[:40]!r}; give "
                    "text in a language of the model."
                )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of our target ids, without special tokens, as in transformers."""
        return self._target.decode([self.target_order[i] for i in ids])

    def is_mark(self, index: int) -> bool:
        """True if one of our target ids is a special token other than unk."""
        return index != self.target.unk and self.target_order[index] in self._target.special


def read_settings(folder: Path) -> dict[str, Any]:
    """The contents of `tokenizer_config.json`; older folders have a part of it in a second file."""
    settings = read_json(folder / SETTINGS)
    if "added_tokens_decoder" not in settings:
        settings |= read_json(folder / SPECIAL)
    return {**settings, **read_json(folder / TEXT)}


def read_tokenizer(folder: Path, config: PretrainedConfig) -> PretrainedTokenizer:
    """Raises UserError if a file is missing, damaged, or of another model."""
    settings = read_settings(folder)
    kind = _kind_of(folder, config, settings)
    cleans = bool(settings.get("clean_up_tokenization_spaces"))
    has_json = (folder / JSON).exists()
    source: Segmenter
    target: Segmenter | None = None
    if kind is MARIAN and ((folder / SOURCE_SPM).exists() or not has_json):
        source, target = _marian(folder, settings, cleans)
    elif kind not in (M2M100, SMALL100) and has_json:
        source = JsonSegmenter.read(folder / JSON, cleans)
        if (folder / TARGET_JSON).exists():
            target = JsonSegmenter.read(folder / TARGET_JSON, cleans)
        if (folder / TEXT).exists():
            source, target = TextSegmenter.read(folder, source, target or source)
    elif kind is T5:
        added, eos = _added(folder, kind, settings), _content(settings.get("eos_token", "</s>"))
        num_extra = int(settings.get("extra_ids", 100))
        source = JsonSegmenter(unigram(Spm(folder / T5_SPM), added, num_extra, eos), cleans)
    elif kind is BYT5:
        source = _bytes(folder, settings, cleans)
    elif kind is PLAIN:
        spaced, added = bool(settings.get("add_prefix_space")), _added(folder, kind, settings)
        source = JsonSegmenter(byte_bpe(folder / VOCABULARY, folder / MERGES, added, spaced))
    else:
        source = _fairseq(folder, kind, settings, cleans)
    return PretrainedTokenizer(folder, kind, config, source, target or source)


def _kind_of(folder: Path, config: PretrainedConfig, settings: Mapping[str, Any]) -> Kind:
    """The kind of tokenizer: by the class that the folder names, else by model type and files.

    Raises UserError for another class: what it puts around a text is not known.
    """
    said = settings.get("tokenizer_class") or read_json(folder / CONFIG).get("tokenizer_class")
    name, model = str(said or "").removesuffix("Fast").removesuffix("Tokenizer"), config.model_type
    if name in _CLASSES:
        # Its tokenizer is code of its own, so some folders say what transformers has.
        is_small = name == "M2M100" and _SMALL in str(settings.get("name_or_path")).lower()
        return SMALL100 if is_small else _CLASSES[name]
    require(
        name in _GENERIC,
        f"{folder}: its tokenizer_class {said!r} is not supported; give a model with one of: "
        f"{', '.join(f'{name}Tokenizer' for name in _CLASSES)}.",
    )
    if model == "m2m_100":
        return M2M100 if (folder / VOCABULARY).exists() else NLLB
    if model in ("t5", "mt5", "umt5"):
        return T5
    if model == "mbart":
        symbols = JsonSegmenter.read(folder / JSON).vocabulary if (folder / JSON).exists() else {}
        return MBART50 if not symbols or "sl_SI" in symbols else MBART
    return MARIAN if model == "marian" else PLAIN


def _added(folder: Path, kind: Kind, settings: Mapping[str, Any]) -> Added:
    """Added tokens that a text may contain, in the order of their ids, if the files give these."""
    found: Added = {}
    for index, token in settings.get("added_tokens_decoder", {}).items():
        found[token["content"]] = {**token, "id": int(index)}
    named = [settings.get(f"{name}_token", _USUAL[name]) for name in kind.usual]
    for extra in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(extra) or ()
        named += more.values() if isinstance(more, Mapping) else more
    for token in filter(None, named):
        record = dict(token) if isinstance(token, Mapping) else {"content": token}
        found.setdefault(record["content"], {**record, "special": True})
    for content, index in read_json(folder / ADDED).items():
        record = found.setdefault(content, {"content": content, "special": False})
        record.setdefault("id", index)
    return found


def _completed(vocabulary: dict[str, int], added: Added, codes: Sequence[str]) -> dict[str, int]:
    """The vocabulary with ids for added tokens: given ids, then new ones, languages first."""
    told = {content: token["id"] for content, token in added.items() if "id" in token}
    vocabulary = vocabulary | told
    for content in (*codes, *added):
        vocabulary.setdefault(content, len(vocabulary))
    return vocabulary


def _marian(
    folder: Path, settings: Mapping[str, Any], cleans: bool
) -> tuple[SpmSegmenter, SpmSegmenter]:
    """The segmenters of both sides."""
    spms = [Spm(folder / name) for name in (SOURCE_SPM, TARGET_SPM)]
    added = _added(folder, MARIAN, settings)
    symbols = _completed(read_vocabulary(folder / VOCABULARY), added, ())
    is_shared = not settings.get("separate_vocabs")
    others = symbols
    if not is_shared:
        others = _completed(read_vocabulary(folder / TARGET_VOCABULARY), added, ())
    unk = _content(settings.get("unk_token", _USUAL["unk"]))
    how: dict[str, Any] = {"unk": unk, "cleans": cleans, "takes_codes": True}
    source = SpmSegmenter(spms[0], spms[0], symbols, added, **how)
    # With a shared vocabulary, transformers joins target pieces with the source's model.
    return source, SpmSegmenter(spms[1], spms[0 if is_shared else 1], others, added, **how)


def _fairseq(folder: Path, kind: Kind, settings: Mapping[str, Any], cleans: bool) -> SpmSegmenter:
    """The segmenter of M2M-100, and of NLLB and mBART without a `tokenizer.json`."""
    spm, added = Spm(folder / SPM), _added(folder, kind, settings)
    has_words = kind in (M2M100, SMALL100)
    if has_words:
        symbols = read_vocabulary(folder / VOCABULARY)
    else:  # fairseq's special symbols, then sentencepiece's after its three
        symbols = {s: i for i, s in enumerate(("<s>", "<pad>", "</s>", "<unk>", *spm.pieces[3:]))}
    if "<mask>" in added:
        added["<mask>"].setdefault("lstrip", True)  # it takes the space before it
    language = re.compile(kind.languages)
    codes = [content for content in added if language.fullmatch(content)]
    if not codes:
        names = published(settings.get("language_codes") or kind.published)
        codes = [f"__{name}__" if has_words else name for name in names]
    symbols = _completed(symbols, added, codes)
    added |= {code: {"special": True} for code in codes if code not in added}
    unk = _content(settings.get("unk_token", _USUAL["unk"]))
    return SpmSegmenter(spm, spm, symbols, added, unk, cleans=cleans)


def _bytes(folder: Path, settings: Mapping[str, Any], cleans: bool) -> SpmSegmenter:
    """The segmenter of ByT5: bytes after three special tokens, and unused tokens at the end."""
    model, added = Bytes(folder / SETTINGS), _added(folder, BYT5, settings)
    for token in ("<pad>", "</s>", "<unk>"):
        added.setdefault(token, {"special": True})
        added[token].setdefault("lstrip", True)
        added[token].setdefault("rstrip", True)
    names = [f"<extra_id_{i}>" for i in range(int(settings.get("extra_ids", 125)))]
    added |= {name: {"special": True} for name in names if name not in added}
    first = {s: i for i, s in enumerate(("<pad>", "</s>", "<unk>", *model.pieces))}
    symbols = _completed(first, added, names)
    return SpmSegmenter(model, model, symbols, added, "<unk>", cleans=cleans)


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


def _order(
    folder: Path, side: Segmenter, config: PretrainedConfig, size: int, settings: Mapping[str, Any]
) -> list[int]:
    """The order of one side. Raises UserError if its tokens do not fit the model."""

    def fits(condition: bool, fault: str) -> None:
        require(condition, f"{folder}: the tokenizer{fault}; take both from the same model.")

    ids = {}
    for name in ("pad", "eos", "unk"):
        symbol = _content(settings.get(f"{name}_token", _USUAL[name]))
        if name == "pad" and symbol not in side.vocabulary:  # nothing is written with it
            ids[name] = config.pad_token_id
            continue
        is_one = side.vocabulary.get(symbol, size) < size
        fits(is_one, f"'s {symbol!r} is not one of the model's {size} tokens")
        ids[name] = side.vocabulary[symbol]
    # BART's models may lack <mask>, which no text needs.
    num_more = sum(i >= size and i not in side.special for i in side.vocabulary.values())
    fits(num_more == 0, f" has {num_more} more tokens than the model's {size}")
    num_symbols = len(side.vocabulary)
    fits(num_symbols > _MOSTLY * size, f" has only {num_symbols} of the model's {size} tokens")
    return order_of(size, **ids, start=config.decoder_start_token_id)
