"""Ways to decode one text: which drafter, rule and schedule, read from a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specdec_plugins.app.bundles import make_settings
from specdec_plugins.app.settings import Settings
from specdec_plugins.decoding.types import Guarantee
from specdec_plugins.errors import UserError

_PATHS = ("verifier", "drafter_checkpoint", "drafter_data", "bigrams")
# What makes a way. The rest, text and limits above all, must be the same for all of them.
CHOICES = (
    *("strategy", "drafter", "drafter_options", "rule", "schedule", "schedule_options"),
    *("beam", "beta", "block_size", "exit_layer", "seed", "tau", "temperature", "top_k", "top_p"),
    *_PATHS,
)
_SHORT = {
    Guarantee.GREEDY: "greedy",
    Guarantee.DISTRIBUTION: "distribution",
    Guarantee.NONE: "none",
}


@dataclass(frozen=True)
class Way:
    """One way to decode."""

    name: str
    settings: Settings

    @property
    def guarantee(self) -> str:
        """In a word, what is promised about the output against the verifier's own."""
        if self.settings.strategy not in ("specdec", "AR"):
            return _SHORT[Guarantee.NONE]
        return _SHORT[self.settings.acceptance.guarantee(self.settings.beta)]


def read_ways(path: Path, given: Mapping[str, Any]) -> list[Way]:
    """The ways of a JSON list of objects, each with a "name" and some of CHOICES.

    given: fields of `Settings` that all have unless they say otherwise. Paths count from the folder
    of the file. Raises UserError, naming the file and the entry, for what is malformed or refused.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); correct the file.") from error
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: expected a JSON list of ways, each an object with a name.")
    ways = [
        _way(entry, f"{path}, way {n}", path.parent, given) for n, entry in enumerate(entries, 1)
    ]
    names = [way.name for way in ways]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: two ways are named {name!r}; give each a name of its own.")
    return ways


def _way(entry: Any, where: str, folder: Path, given: Mapping[str, Any]) -> Way:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UserError(f'{where}: expected an object with a name, such as {{"name": "lookup"}}.')
    chosen = {key: value for key, value in entry.items() if key != "name"}
    unknown = sorted(chosen.keys() - set(CHOICES))
    if unknown:
        raise UserError(
            f"{where}: {unknown[0]!r} is no choice of a way; choose of: {', '.join(CHOICES)}."
        )
    for key in _PATHS:
        if chosen.get(key) is not None:
            chosen[key] = str(folder / chosen[key])
    try:
        return Way(entry["name"], make_settings({**given, **chosen}))
    except UserError as error:
        raise UserError(f"{where}, {entry['name']!r}: {error}") from error
    except TypeError as error:
        raise UserError(
            f"{where}, {entry['name']!r}: a value of the wrong type ({error})."
        ) from error


def baselines(ways: Sequence[Way]) -> dict[str, Way]:
    """By each way's name, its verifier decoding alone, greedily, one token at a time.

    A verifier is one way however many draft for it, so its decodings compare as one does.
    """
    alone: dict[str | None, Way] = {}
    verifiers = {way.settings.verifier for way in ways if way.settings.verifier}
    for way in ways:
        verifier = way.settings.verifier or next(iter(sorted(verifiers)), None)
        if verifier is None:
            raise UserError("None of the ways has a verifier to compare with; add --AR-path.")
        name = "AR greedy" if len(verifiers) == 1 else f"AR greedy, {Path(verifier).stem}"
        kept = {f.name: getattr(way.settings, f.name) for f in fields(Settings)}
        for choice in CHOICES:
            kept.pop(choice)
        kept.update(strategy="AR", verifier=verifier)
        alone.setdefault(verifier, Way(name, Settings(**kept)))
    first = next(iter(alone.values()))
    return {way.name: alone.get(way.settings.verifier, first) for way in ways}
