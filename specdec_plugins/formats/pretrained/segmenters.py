"""Text to the ids of a model's files and back, as transformers' tokenizers do it.

Four kinds: sentencepiece with a vocabulary beside it (MarianMT, M2M-100, and NLLB and mBART as
first published), whatever `tokenizer.json` describes, bytes (ByT5), and the text pipeline of this
project's exported models. Ids are those of the files, without the tokens around a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from specdec_plugins.errors import UserError, imported, read_object, require
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.text import TextPipeline

_FEW = 0.1  # least share of a vocabulary's symbols that a sentencepiece model knows
_UNDERLINE = "\u2581"  # sentencepiece's mark of a space
_CODE = re.compile(r">>.*?<<", re.DOTALL)  # MarianMT's target language, at the start of a source
# transformers' own list, for English text that was tokenised into words.
_CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


TEXT, CODES = "text.json", "bpe.codes"  # of an exported model of this project
Added = dict[str, dict[str, Any]]  # tokens that a text may contain; their settings in transformers


class Segmenter(Protocol):
    vocabulary: Mapping[str, int]
    special: frozenset[int]  # ids that leave no text

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, an empty one if the file is missing.

    Raises UserError if the file cannot be read.
    """
    return read_object(path, "the file", "download it again") if path.exists() else {}


def check_exists(path: Path) -> None:
    """Raises UserError unless the file is there."""
    require(
        path.is_file(),
        f"{path}: there is no such file, but the model's tokenizer needs it; copy it from where "
        "the model came from.",
    )


def read_vocabulary(path: Path) -> dict[str, int]:
    """Symbols and ids of a `vocab.json`. Raises UserError if it is missing or something else."""
    check_exists(path)
    found = read_json(path)
    is_one = all(isinstance(index, int) for index in found.values())
    require(is_one, f"{path}: expected symbols and their ids; download it again.")
    return found


class Spm:
    """A sentencepiece model file."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where it is missing or damaged."""
        self.path = path
        self._model = imported("sentencepiece", "text").SentencePieceProcessor()
        check_exists(path)
        try:
            self._model.Load(str(path))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{path}: not a sentencepiece model; download it again.") from error

    @property
    def pieces(self) -> list[str]:
        return [self._model.id_to_piece(i) for i in range(self._model.get_piece_size())]

    @property
    def scores(self) -> list[float]:
        return [self._model.get_score(i) for i in range(self._model.get_piece_size())]

    @property
    def unk(self) -> int:
        return int(self._model.unk_id())

    @property
    def characters(self) -> bytes:
        """The compiled map of characters to normal ones; empty if there is none."""
        normalizer = _field(self._model.serialized_model_proto(), 3)
        return _field(normalizer, 2)

    def encode(self, text: str) -> list[str]:
        return list(self._model.encode(text, out_type=str))

    def decode(self, pieces: Sequence[str]) -> str:
        return str(self._model.decode_pieces(list(pieces)))


def _field(message: bytes, number: int) -> bytes:
    """A field of bytes in a message of protocol buffers, the last of that number; else empty."""
    return next((own for n, own in reversed([*_fields(message)]) if n == number), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message: their numbers, and their contents if these are bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            varint()
            size = 0
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
        yield number, message[at : at + size] if kind == 2 else b""
        at += size


class Bytes:
    """UTF-8 in place of a sentencepiece model."""

    def __init__(self, path: Path) -> None:
        self.path = path  # of what says that a model reads bytes
        self.pieces = [f"<0x{byte:02X}>" for byte in range(256)]

    def encode(self, text: str) -> list[str]:
        return [self.pieces[byte] for byte in text.encode()]

    def decode(self, pieces: Sequence[str]) -> str:
        return bytes(int(piece[3:5], 16) for piece in pieces).decode(errors="ignore")


class SpmSegmenter:
    """sentencepiece pieces with ids from a separate vocabulary."""

    def __init__(
        self,
        encoder: Spm | Bytes,
        decoder: Spm | Bytes,
        vocabulary: Mapping[str, int],
        added: Added,
        unk: str,
        *,
        cleans: bool = False,
        takes_codes: bool = False,
    ) -> None:
        """cleans: drop spaces before English punctuation; takes_codes: MarianMT's `>>deu<<`."""
        self.vocabulary = vocabulary
        self.special = frozenset(vocabulary[t] for t, how in added.items() if how["special"])
        self._encoder, self._decoder = encoder, decoder
        self._cleans, self._takes_codes = cleans, takes_codes
        self._unk, self._added = unk, added
        self._symbols = {index: symbol for symbol, index in vocabulary.items()}
        num_known = len(vocabulary.keys() & set(encoder.pieces))
        require(
            num_known >= _FEW * len(vocabulary),
            f"{encoder.path}: knows {num_known} of the vocabulary's {len(vocabulary)} symbols, so "
            "it is truncated or of another model; download it again.",
        )
        longest_first = sorted(added, key=len, reverse=True)
        self._splits = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def encode(self, text: str) -> list[int]:
        ids, unk = list[int](), self.vocabulary[self._unk]
        parts = self._splits.split(text)  # text, special token, text, ...
        for index, part in enumerate(parts):
            if index % 2:
                ids.append(self.vocabulary[part])
                continue
            if index > 0 and self._added[parts[index - 1]].get("rstrip"):
                part = part.lstrip()
            if index + 1 < len(parts) and self._added[parts[index + 1]].get("lstrip"):
                part = part.rstrip()
            ids += [self.vocabulary.get(piece, unk) for piece in self._pieces(part)]
        return ids

    def _pieces(self, text: str) -> list[str]:
        code = _CODE.match(text) if self._takes_codes else None
        if code is None:
            return self._encoder.encode(text) if text else []
        return [code[0], *self._encoder.encode(text[code.end() :])]

    def decode(self, ids: Sequence[int]) -> str:
        text, pieces = "", list[str]()
        for index in ids:
            if index in self._symbols:
                pieces += [] if index in self.special else [self._symbols[index]]
            else:  # a row of the model that has no symbol
                text, pieces = text + self._decoder.decode(pieces) + self._unk, []
        text += self._decoder.decode(pieces)
        if not isinstance(self._decoder, Bytes):
            text = text.replace(_UNDERLINE, " ").strip()
        return cleaned(text) if self._cleans else text


class JsonSegmenter:
    """A tokenizer of the package tokenizers, read from a file or built."""

    def __init__(self, tokenizer: Any, cleans: bool = False) -> None:
        """cleans: drop spaces before English punctuation, unless the model is BPE."""
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.vocabulary = tokenizer.get_vocab()
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in added.items() if token.special)
        self._cleans = cleans and type(tokenizer.model).__name__ != "BPE"

    @classmethod
    def read(cls, path: Path, cleans: bool = False) -> JsonSegmenter:
        """Read a `tokenizer.json`. Raises UserError if it is missing or damaged."""
        tokenizers = imported("tokenizers", "text")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)), cleans)
        except Exception as error:  # the package raises no class of its own
            raise UserError(f"{path}: not a tokenizer ({error}); download it again.") from error

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        text = str(self._tokenizer.decode(list(ids)))
        return cleaned(text) if self._cleans else text

    def frame(self) -> tuple[list[int], list[int]]:
        """The ids that its own post-processor puts before a text and after it."""
        bare, whole = self.encode("a"), list(self._tokenizer.encode("a").ids)
        at = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
        return whole[: at[0]], whole[at[0] + len(bare) :]


class TextSegmenter:
    """Words and BPE as in this project's own models, and the ids of the resulting symbols."""

    special = frozenset(range(4))  # as in fairseq

    def __init__(self, pipeline: TextPipeline, vocabulary: Mapping[str, int], side: str) -> None:
        """side: source or target."""
        self.vocabulary = vocabulary
        self._pipeline, self._side = pipeline, side
        self._symbols = {index: symbol for symbol, index in vocabulary.items()}

    @classmethod
    def read(cls, folder: Path, source: Segmenter, target: Segmenter) -> list[TextSegmenter]:
        """Both sides of an exported model. Raises UserError if its files are faulty."""
        record = {k: v for k, v in read_json(folder / TEXT).items() if v is not None}
        plain = {"tokenizer": None, "bpe": None}  # where the file says nothing
        codes = folder / CODES if record.pop("bpe_codes", None) else None
        try:
            pipeline = TextPipeline(**plain | record, codes=codes)
        except TypeError as error:
            raise UserError(
                f"{folder / TEXT}: unusable text settings ({error}); export the model again."
            ) from error
        sides = (("source", source), ("target", target))
        return [cls(pipeline, side.vocabulary, name) for name, side in sides]

    def encode(self, text: str) -> list[int]:
        is_source = self._side == "source"
        tokens = self._pipeline.encode(text) if is_source else self._pipeline.encode_target(text)
        return [self.vocabulary.get(token, Dictionary.unk) for token in tokens.split()]

    def decode(self, ids: Sequence[int]) -> str:
        kept = (self._symbols[i] for i in ids if i not in self.special and i in self._symbols)
        return self._pipeline.decode(" ".join(kept))


def cleaned(text: str) -> str:
    """The text without the spaces that `clean_up_tokenization_spaces` removes."""
    for spaced in _CLEANED:
        text = text.replace(spaced, spaced.strip())
    return text


def unigram(spm: Spm, added: Added, num_extra: int, eos: str) -> Any:
    """T5's `tokenizers.Tokenizer`. num_extra: tokens `<extra_id_0>` and so on, which come last."""
    tokenizers = imported("tokenizers", "text")
    pieces = list(zip(spm.pieces, spm.scores, strict=True))
    extra = [f"<extra_id_{i}>" for i in reversed(range(num_extra))]
    pieces += [(name, 0.0) for name in extra if name not in {*spm.pieces}]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, spm.unk, False))
    if characters := spm.characters:
        tokenizer.normalizer = tokenizers.normalizers.Precompiled(characters)
    how: dict[str, Any] = {"replacement": _UNDERLINE, "prepend_scheme": "always", "split": True}
    split = tokenizers.pre_tokenizers.WhitespaceSplit()
    spaces = tokenizers.pre_tokenizers.Metaspace(**how)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, spaces])
    tokenizer.decoder = tokenizers.decoders.Metaspace(**how)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=["$A", eos], special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    known = tokenizer.get_vocab()
    _add_special(tokenizer, {**dict.fromkeys(extra, {}), **added}, known)
    return tokenizer


def _add_special(tokenizer: Any, added: Added, known: Mapping[str, int]) -> None:
    """Tell a tokenizer of its special tokens, as far as it has them."""
    tokenizers = imported("tokenizers", "text")
    switches = ("lstrip", "rstrip", "single_word", "normalized", "special")
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(token, **{name: how[name] for name in switches if name in how})
            for token, how in added.items()
            if token in known
        ]
    )


def byte_bpe(vocabulary: Path, merges: Path, added: Added, spaced: bool) -> Any:
    """BART's `tokenizers.Tokenizer`. spaced: encode a text as if a space preceded it."""
    tokenizers = imported("tokenizers", "text")
    symbols = read_vocabulary(vocabulary)
    check_exists(merges)
    try:
        read = tokenizers.models.BPE.read_file(str(vocabulary), str(merges))
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(*read))
    except Exception as error:  # the package raises no class of its own
        raise UserError(
            f"{merges}: does not fit the vocabulary beside it ({error}); download both again."
        ) from error
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    eos, bos = "</s>", "<s>"
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(
        (eos, symbols.get(eos, 2)), (bos, symbols.get(bos, 0)), True, spaced
    )
    _add_special(tokenizer, added, symbols)
    return tokenizer
