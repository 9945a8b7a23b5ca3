"""Text to token ids and back, in the languages of a model."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_plugins.errors import require
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.pretrained.tokenizer import PLAIN, Languages, PretrainedTokenizer
from specdec_plugins.formats.text import TextPipeline

_SUBWORD_NMT = ("subword_nmt", "@@ ", "@@")


def join_subwords(tokens: str, symbol: str | None) -> str:
    """Space-separated tokens with subwords joined, as fairseq's `--remove-bpe` joins them.

    symbol: the mark that a subword ends in when its word goes on ('@@' means '@@ '),
    'sentencepiece', or None to leave tokens alone.
    """
    if symbol is None:
        return tokens
    if symbol == "sentencepiece":
        return tokens.replace(" ", "").replace("\u2581", " ").strip()
    mark = "@@ " if symbol in _SUBWORD_NMT else symbol
    return (tokens + " ").replace(mark, "").rstrip()


class Codec:
    """Everything between the lines of a file and the ids of a model."""

    num_framing = 1  # tokens of every source that come of no text: its eos
    num_behind = 1  # of these, how many stand at the end
    first_ids: Sequence[int] = ()  # target tokens that every translation begins with
    reads_texts = False  # not sentence by sentence, as those that summarise

    def __init__(
        self,
        source: Dictionary,
        target: Dictionary,
        text: TextPipeline | None = None,
        remove_bpe: str | None = "@@ ",
    ) -> None:
        """text: for raw text; None where lines are tokens. remove_bpe: see `join_subwords`."""
        self._source = source
        self._target = target
        self._text = text
        self._remove_bpe = remove_bpe
        sides = [(side.language,) if side.language else () for side in (source, target)]
        self.languages = Languages("this model", sides[0], sides[1])

    @property
    def source_lang(self) -> str | None:
        """Of what it reads, where that is known."""
        return self._source.language

    @property
    def target_lang(self) -> str | None:
        """Of what it writes, where that is known."""
        return self._target.language

    def between(self, source_lang: str | None, target_lang: str | None) -> Codec:
        """The same for these languages, None for what it is by default.

        Raises UserError where the model does not have them.
        """
        self.languages.choose(source_lang, target_lang)
        return self

    def source_ids(self, line: str) -> list[int]:
        """Ids of a source line, with what frames it: eos at the end."""
        tokens = line if self._text is None else self._text.encode(line)
        return self._source.encode_line(tokens)

    def source_token_ids(self, tokens: Sequence[str]) -> list[int]:
        """Ids of source tokens, whatever the form of the input; framed likewise."""
        return self._source.encode_line(" ".join(tokens))

    def target_ids(self, line: str) -> list[int]:
        """Ids of target text, without eos."""
        tokens = line if self._text is None else self._text.encode_target(line)
        return self.token_ids(tokens)

    def token_ids(self, tokens: str) -> list[int]:
        """Ids of space-separated target tokens, whatever the form of the input; without eos."""
        return self._target.encode_line(tokens, append_eos=False)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The target tokens of some ids, up to eos; `<s>` is none, as in fairseq's output."""
        stop = ids.index(self._target.eos) if self._target.eos in ids else len(ids)
        return [self._target.symbols[i] for i in ids[:stop] if i != self._target.bos]

    def text(self, tokens: Sequence[str]) -> str:
        """The line that a user reads. Never holds a line end."""
        joined = " ".join(tokens)
        if self._text is not None:
            text = self._text.decode(joined)
        else:
            text = join_subwords(joined, self._remove_bpe)
        return _one_line(text)  # a dictionary may hold strange symbols

    def settled(self, tokens: Sequence[str]) -> int:
        """How many of the first tokens have a text that no later token changes; see `RunningText`.

        Their text, a space and the text of the rest is the text of all.
        """
        return 0 if self._text is None else self._text.settled(tokens)


class PretrainedCodec(Codec):
    """The same with a tokenizer of transformers', between two of its languages."""

    def __init__(
        self,
        tokenizer: PretrainedTokenizer,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> None:
        """Raises UserError for languages that the model does not have."""
        super().__init__(tokenizer.source, tokenizer.target)
        self.tokenizer, self.languages = tokenizer, tokenizer.languages
        self._chosen = self.languages.choose(source_lang, target_lang)
        self.reads_texts = tokenizer.kind is PLAIN

    @property
    def source_lang(self) -> str | None:
        return self._chosen[0]

    @property
    def target_lang(self) -> str | None:
        return self._chosen[1]

    @property
    def num_framing(self) -> int:  # type: ignore[override]
        return sum(map(len, self.tokenizer.frame(*self._chosen)))

    @property
    def num_behind(self) -> int:  # type: ignore[override]
        return len(self.tokenizer.frame(*self._chosen)[1])

    @property
    def first_ids(self) -> Sequence[int]:  # type: ignore[override]
        """Raises UserError where the target's language must be chosen."""
        return self.tokenizer.first_ids(self.target_lang)

    def between(self, source_lang: str | None, target_lang: str | None) -> PretrainedCodec:
        if source_lang is None and target_lang is None:
            return self
        source, target = self._chosen
        return PretrainedCodec(self.tokenizer, source_lang or source, target_lang or target)

    def source_ids(self, line: str) -> list[int]:
        """Ids of a source line, with what the model expects around it.

        Raises UserError where a language must be chosen, and for what is no text to the tokenizer.
        """
        ids = self.tokenizer.encode(line) if line.strip() else []
        require(
            self._source.pad not in ids,
            "the text spells the token for padding, which the model would pass over; write it in "
            "another way, for instance with spaces between its characters.",
        )
        return self.tokenizer.framed(ids, *self._chosen)

    def source_token_ids(self, tokens: Sequence[str]) -> list[int]:
        ids = [self._source.index(token) for token in tokens]
        return self.tokenizer.framed(ids, *self._chosen)

    def target_ids(self, line: str) -> list[int]:
        return self.tokenizer.encode_target(line)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The target tokens of some ids, up to eos; those that stand for languages are none."""
        stop = ids.index(self._target.eos) if self._target.eos in ids else len(ids)
        return [self._target.symbols[i] for i in ids[:stop] if not self.tokenizer.is_mark(i)]

    def text(self, tokens: Sequence[str]) -> str:
        return _one_line(self.tokenizer.decode([self._target.index(token) for token in tokens]))

    def settled(self, tokens: Sequence[str]) -> int:
        """None: what a token adds depends on its neighbours."""
        return 0


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


class RunningText:
    """The text of a sentence that grows token by token; what is settled is not read again."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._settled = ""  # ends in a space where it is not empty
        self._tail: list[str] = []  # tokens behind it

    def add(self, tokens: Sequence[str]) -> str:
        """The text with these tokens, too: `codec.text` of all so far."""
        self._tail += tokens
        text = self._settled + self._codec.text(self._tail)
        if num_settled := self._codec.settled(self._tail):
            self._settled += self._codec.text(self._tail[:num_settled]) + " "
            del self._tail[:num_settled]
        return text
