"""Translating what somebody types, or what a pipe brings: one line in, one line out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TextIO

from specdec_plugins.app.blocks import BlockTranslation, translate_in_blocks
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Sentence
from specdec_plugins.errors import UserError

PROMPT = "> "
BRACKETS = ("[", "]")
COLOURS = ("\033[1;32m", "\033[0m")  # bold green

EXPLANATION = (
    "Type a sentence and press Enter; an empty line or ctrl-D ends. What is marked {marked} came\n"
    "from the drafter in one block and was accepted; the rest is the verifier's own.\n"
)


@dataclass(frozen=True)
class Prompt:
    """A conversation at a terminal."""

    translator: SpeculativeTranslator
    out: TextIO
    colours: bool = False  # mark blocks by colour, not by brackets

    @property
    def _marks(self) -> tuple[str, str]:
        return COLOURS if self.colours else BRACKETS

    def run(self, ask: Callable[[str], str]) -> None:
        """Translate until `ask`, which is `input`, gives nothing or ends."""
        self._say(EXPLANATION.format(marked="so".join(self._marks)))
        while True:
            try:
                line = ask(PROMPT).strip()
            except EOFError:
                self._say("")
                return
            if not line:
                return
            try:
                self._say(self.answer(translate_in_blocks(self.translator, line)))
            except UserError as error:
                self._say(f"  {error}")

    def answer(self, done: BlockTranslation) -> str:
        """What is shown of one translation."""
        text = done.marked(*self._marks)
        each = done.num_tokens / done.rounds if done.rounds else 0.0
        rounds = "round" if done.rounds == 1 else "rounds"
        return (
            f"  {text}\n  {done.num_tokens} tokens in {done.rounds} {rounds}, {each:.1f} a round, "
            f"{1000 * done.seconds:.0f} ms"
        )

    def _say(self, text: str) -> None:
        self.out.write(text + "\n")
        self.out.flush()


def translate_pipe(
    translator: SpeculativeTranslator, lines: Iterable[Sentence], out: TextIO
) -> None:
    """A translation for each line, written as soon as it is there; an empty line stays empty."""
    for sentence in lines:
        out.write(translator.translate_sentences([sentence])[0].text + "\n")
        out.flush()
