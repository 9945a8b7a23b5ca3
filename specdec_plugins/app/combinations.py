"""Which drafter, rule, schedule and strategy go together: refused before any model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.decoding.types import AcceptanceRule, DecodeParams
from specdec_plugins.errors import require

if TYPE_CHECKING:
    from specdec_plugins.app.settings import Settings

_JUDGED = ("specdec", "AR", "early-exit")  # strategies that ask an acceptance rule
_SAMPLING = ("temperature", "top_k", "top_p")


def check_method(settings: Settings) -> None:
    """Raises UserError for names, options and combinations that cannot be.

    What only the checkpoints can tell, such as an exit layer that does not exist, is refused when
    they are loaded.
    """
    DRAFTERS.configure(settings.drafter, dict(settings.drafter_options))
    SCHEDULES.configure(settings.schedule, dict(settings.schedule_options))
    rule: Any = RULES.get(settings.rule_name)
    _check_rule(settings, rule())
    _check_sampling(settings, rule())
    require(
        settings.drafter_data is None or settings.drafter == "assistant",
        f"--drafter-data is for --drafter assistant; leave it away with {settings.drafter}.",
    )
    require(
        settings.bigrams is None or settings.drafter == "block",
        f"--bigrams are for --drafter block; leave them away with {settings.drafter}.",
    )


def _check_rule(settings: Settings, rule: AcceptanceRule) -> None:
    require(
        settings.rule is None or settings.strategy in _JUDGED,
        f"--strategy {settings.strategy} verifies nothing, so --rule {settings.rule} would have "
        "nothing to judge; leave it away, or use --strategy specdec.",
    )
    tolerates = rule.guarantee(2) is not rule.guarantee(1)
    require(
        tolerates or settings.beta == 1 or settings.strategy != "specdec",
        f"--rule {settings.rule} takes no tolerance; leave --beta {settings.beta} away, or use "
        "top_beta.",
    )


def _check_sampling(settings: Settings, rule: AcceptanceRule) -> None:
    judged = settings.strategy in _JUDGED
    in_force = f"--rule {settings.rule_name}" if judged else f"--strategy {settings.strategy}"
    for name in _SAMPLING:
        value, flag = getattr(settings, name), "--" + name.replace("_", "-")
        require(
            (judged and rule.samples) or value == getattr(DecodeParams(), name),
            f"{flag} {value:g} is for rules that sample, and {in_force} does not; add "
            f"--rule speculative_sampling, or leave {flag} away.",
        )
