"""Text to token ids and back, for one pair of languages."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_plugins.formats.dictionaries import Dictionary
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

    def source_ids(self, line: str) -> list[int]:
        """Ids of a source line, eos at the end."""
        tokens = line if self._text is None else self._text.encode(line)
        return self._source.encode_line(tokens)

    def source_token_ids(self, tokens: Sequence[str]) -> list[int]:
        """Ids of source tokens, whatever the form of the input; eos at the end."""
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
        # A dictionary may hold strange symbols.
        return text.replace("\n", " ").replace("\r", " ")

    def settled(self, tokens: Sequence[str]) -> int:
        """How many of the first tokens have a text that no later token changes; see `RunningText`.

        Their text, a space and the text of the rest is the text of all.
        """
        return 0 if self._text is None else self._text.settled(tokens)


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
