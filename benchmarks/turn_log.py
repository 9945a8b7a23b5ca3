"""Turns that have been decoded, on disk, so that a comparison of hours goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_plugins.errors import UserError

# What each way made of one batch: its translations, as `Translation.to_dict` has them.
Turn = Sequence[Sequence[Mapping[str, Any]]]


class TurnLog:
    """A file of JSON lines: what all turns depend on, then a line for each turn.

    A last line without an end, of a run that was killed while it wrote it, does not count.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """about: what another run must have in common to go on, as JSON can hold it.

        Raises UserError where the file is of a run that has not, or cannot be read or written.
        """
        self.path = path
        self.turns: list[Turn] = []
        try:
            if path.exists():
                self._read(json.loads(json.dumps(about)))
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(about) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error

    def add(self, turn: Turn) -> None:
        """One more turn; it is on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(turn) + "\n")
        self.turns.append(turn)

    def remove(self) -> None:
        """All is decoded, and what came of it is written."""
        self.path.unlink(missing_ok=True)

    def _read(self, about: Mapping[str, Any]) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            begun, *turns = map(json.loads, whole.splitlines())
            unlike = [name for name in about if begun[name] != about[name]]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path}: damaged; delete it to start over") from error
        if unlike:
            raise UserError(
                f"{self.path}: was begun with another {unlike[0]}; run it as it was begun, or "
                "delete the file to start over"
            )
        self.turns = turns
        if len(whole) < len(data):
            self.path.write_bytes(whole)
