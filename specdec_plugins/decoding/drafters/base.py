"""What every drafter is built from, and the list of drafters by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from specdec_plugins.decoding.bigrams import Bigrams
from specdec_plugins.decoding.interfaces import Drafter, Verifier
from specdec_plugins.decoding.registry import Registry

DRAFTERS: Registry[Drafter] = Registry("drafter")


@dataclass(frozen=True)
class DraftContext:
    """Everything a drafter may be built from; each takes what it needs and refuses without it."""

    verifier: Verifier
    network: nn.Module | None = None  # the trained network that was loaded for it, in eval mode
    source_to_target: Tensor | None = None  # [V source] int64, same symbol or unk; None = same ids
    assistant: Verifier | None = None  # a smaller model with the same target vocabulary
    source_to_assistant: Tensor | None = None  # [V source] int64, same symbol or unk; None = same
    bigrams: Bigrams | None = None  # what tends to follow what in the target language
    sampling: bool = False  # the rule draws from p, so a drafter that has a law q should draw too


def build_drafter(
    name: str, context: DraftContext, options: dict[str, Any] | None = None
) -> Drafter:
    """The drafter of that name with `options` for its Config.

    Raises UserError for an unknown name or option, each with the choices.
    """
    cls, config = DRAFTERS.configure(name, options)
    drafter: Drafter = cls(config, context)
    return drafter
