"""Continuing an interrupted output, and knowing that it belongs to this input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdec_plugins.app.settings import Settings
from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus.resume import first_difference, write_json
from specdec_plugins.errors import UserError

# What may differ between two runs that write one output: it changes speed, not lines.
_FREE = {"batch", "device"}


class Fingerprint:
    """A running hash of the input lines read so far."""

    def __init__(self) -> None:
        self.lines = 0
        self._hash = hashlib.sha256()

    def add(self, text: str, prefix: str | None) -> None:
        self.lines += 1
        self._hash.update(json.dumps([text, prefix]).encode())

    def value(self) -> str:
        return self._hash.hexdigest()


class Journal:
    """`OUTPUT.resume`: how far an output is, and what it was made from. Gone when it is done.

    Written after the lines that it counts, so an output holds at least as many.
    """

    def __init__(self, output_path: str, settings: Settings) -> None:
        self.output_path = output_path
        self.path = Path(f"{output_path}.resume")
        made_from = {k: v for k, v in asdict(settings).items() if k not in _FREE}
        # Through JSON and back, so that it compares equal to what a file gives.
        self._settings: dict[str, Any] = json.loads(json.dumps(made_from))
        self._recorded: dict[str, Any] | None = None

    def read(self, complete_lines: int) -> bool:
        """Compare with an output of so many lines; False where there is no journal.

        Raises UserError where the output cannot be continued with these settings.
        """
        try:
            recorded = json.loads(self.path.read_text(encoding="utf-8"))
            settings, lines = dict(recorded["settings"]), int(recorded["lines"])
            str(recorded["input"])
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path}: is damaged; delete it to continue by the number of lines alone."
            ) from error
        if (other := first_difference(settings, self._settings)) is not None:
            raise UserError(
                f"{self.output_path}: was begun with {other} {settings.get(other)!r}, not "
                f"{self._settings.get(other)!r}; use the same settings, or start without --resume."
            )
        if complete_lines < lines:
            raise UserError(
                f"{self.output_path}: holds {complete_lines} complete lines (its JSON lines "
                f"counted as well), but {lines} were written; so start without --resume."
            )
        self._recorded = recorded
        return True

    def check(self, seen: Fingerprint) -> None:
        """Raises UserError where the lines recorded are not those of this input."""
        recorded = self._recorded
        if recorded and seen.lines == recorded["lines"] and seen.value() != recorded["input"]:
            raise UserError(
                f"{self.output_path}: its first {seen.lines} lines came from another input; "
                "give the same input, or start without --resume."
            )

    def record(self, seen: Fingerprint) -> None:
        """Say, in one step, that the output holds the lines seen so far."""
        state = {"lines": seen.lines, "input": seen.value(), "settings": self._settings}
        write_json(self.path, state)

    def remove(self) -> None:
        """The output is complete."""
        self.path.unlink(missing_ok=True)


def skip(
    sentences: Iterator[Sentence], num_lines: int, journal: Journal | None, seen: Fingerprint
) -> None:
    """Read over the sentences whose translations an output holds already.

    Raises UserError where there are fewer, or others than the journal recorded.
    """
    for index in range(num_lines):
        sentence = next(sentences, None)
        if sentence is None:
            raise UserError(
                f"The output holds {num_lines} lines and the input only {index}; it belongs to "
                "another input, so start without --resume."
            )
        seen.add(sentence.text, sentence.prefix)
        if journal is not None:
            journal.check(seen)
