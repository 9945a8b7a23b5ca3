"""What is shown of a translation as it grew: on scripted parts, whose answers are known."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_plugins.app.main import Prompt
from specdec_plugins.app.types import BlockTranslation, Span
from specdec_plugins.errors import UserError
from tests.app.toys import translated, translator

ROOT = Path(__file__).resolve().parents[2]


def test_pieces_make_up_the_translation_and_say_who_wrote_them() -> None:
    done = translator().translate_in_blocks("c d e")
    # d d c c would be one block of four; the verifier adds its own token behind it.
    assert done.text == translated("c d e")
    assert done.spans[:2] == [Span("e e d d", True), Span(" c", False)]
    assert (done.num_tokens, done.rounds) == (6, 2)
    assert done.marked("[", "]") == "[e e d d] c [c]"


def test_a_word_may_be_split_between_two_rounds() -> None:
    made = translator()
    # Words that end in the mark go on in the next token.
    made.codec.text = lambda tokens: " ".join(tokens).replace("d c", "dc")  # type: ignore[method-assign]
    done = made.translate_in_blocks("c d e")
    assert done.text == "e e d dc c"
    assert done.marked("[", "]") == "[e e d d]c [c]"


@pytest.mark.parametrize("line", ["", "   "])
def test_a_line_without_words_has_no_blocks(line: str) -> None:
    assert translator().translate_in_blocks(line) == BlockTranslation([], 0, 0, 0.0)


def test_a_search_without_rounds_is_refused() -> None:
    search = translator()
    search.decoder = object()  # type: ignore[assignment]
    with pytest.raises(UserError, match="cannot tell its blocks"):
        search.translate_in_blocks("a b")


def converse(*lines: str) -> str:
    """What a person who types these lines, and then ctrl-D, reads."""
    waiting = list(lines)

    def ask(prompt: str) -> str:
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    out = io.StringIO()
    Prompt(translator(source=5), out).run(ask)
    return out.getvalue()


def test_a_conversation_goes_on_after_a_line_that_is_too_long() -> None:
    said = converse("a b c d e f g", "c d")
    assert "more than the 4" in said
    assert "  [d d c c]\n  4 tokens in 1 round, 4.0 a round" in said


def test_an_empty_line_ends_it() -> None:
    assert "e e" not in converse("", "e")


@pytest.mark.integration
def test_a_pipe_gets_a_line_for_each_line_at_once() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "translate.py"), "--cpu"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"Good morning.\n", b"\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert (process.stdout.readline() == b"\n") == (line == b"\n")
        assert process.communicate(b"") == (b"", b"")
    assert process.returncode == 0
