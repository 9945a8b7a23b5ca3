"""How each registered drafter is built on a toy verifier. A new drafter enters itself here."""

from __future__ import annotations

from collections.abc import Callable

from specdec_plugins.decoding.interfaces import Drafter
from tests.decoding.toys import SCRIPTS, Script, ScriptedDrafter, TableVerifier

FACTORIES: dict[str, Callable[[TableVerifier], Drafter]] = {}


def _scripted(script: Script) -> Callable[[TableVerifier], Drafter]:
    return lambda verifier: ScriptedDrafter(verifier.table, script)


# The scripted drafters run through everything that the registered ones do.
SCRIPTED = {f"scripted:{name}": _scripted(script) for name, script in SCRIPTS.items()}
