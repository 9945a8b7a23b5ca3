"""What every drafter is built from, and the list of drafters by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.bigrams import Bigrams
from specdec_plugins.decoding.networks.trained import TrainedNetwork
from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.types import Draft, Drafter, Verifier

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


@dataclass(frozen=True)
class Needs:
    """What a class of drafter takes, so that the rest is refused before anything is loaded."""

    network: type[TrainedNetwork] | None = None  # trained weights of this kind, from a checkpoint
    verifier: bool = True  # False = it can also decode alone
    own_source: bool = False  # the network may have a source dictionary of its own
    bigrams: bool = False  # it can read how well tokens go together


def needs_of(name: str) -> Needs:
    """Of the drafter of that name, whose class says it in `needs`; nothing where it does not."""
    needs: Needs = getattr(DRAFTERS.get(name), "needs", Needs())
    return needs


def build_drafter(
    name: str, context: DraftContext, options: dict[str, Any] | None = None
) -> Drafter:
    """The drafter of that name with `options` for its Config.

    Raises UserError for an unknown name or option, each with the choices.
    """
    cls, config = DRAFTERS.configure(name, options)
    drafter: Drafter = cls(config, context)
    return drafter


def until_end(draft: Draft, eos: int, asks: bool) -> Draft:
    """The draft of a drafter that proposes all positions at once, cut behind each row's first eos.

    Nothing behind it can ever be kept: either the eos is, and the sentence is over, or it is not,
    and what follows a rejected token goes with it. So the text stays the same, and the verifier has
    less to score. asks: the host may wait for the device, to learn how many columns are left; else
    all of them stay.
    """
    num_columns = draft.tokens.shape[1]
    is_end = draft.tokens == eos
    # argmax gives the first True; a row without eos keeps everything
    ends = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, num_columns)
    lengths = torch.minimum(draft.lengths, ends)
    if not asks:
        return Draft(draft.tokens, lengths, draft.probs)
    width = max(1, int(lengths.max()))
    probs = None if draft.probs is None else draft.probs[:, :width]
    return Draft(draft.tokens[:, :width], lengths, probs)
