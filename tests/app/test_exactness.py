from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from specdec_plugins.app import exactness
from specdec_plugins.app.codec import Codec
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.app.types import Limits
from specdec_plugins.decoding.contract import AcceptanceRule, Case, Scores, Verdict
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.formats.dictionaries import Dictionary
from tests.decoding.toys import SCRIPTS, ScriptedDrafter, TableVerifier, random_table
from tests.refusals import refused

SENTENCES = number_sentences(["a b", "b", "c d a", "", "d", "e e"])
SETTINGS = Settings(data="-", verifier="-", drafter_checkpoint="-", max_len_b=12, block_size=4)


@dataclass(frozen=True)
class Careless(Exact):
    """Claims to be exact and accepts a wrong token where the gap is small enough."""

    tolerance: float = 0.0  # nats

    def judge(self, case: Case) -> Verdict:
        logits = case.scores.logits.clone()
        best = logits.amax(-1, keepdim=True)
        # The last of the tolerated ids wins, where argmax takes the best.
        tolerated = logits >= best - self.tolerance
        last = logits.shape[-1] - 1 - tolerated.flip(-1).int().argmax(-1)
        logits.scatter_(-1, last[..., None], best + 1)
        return super().judge(replace(case, scores=Scores(logits)))


def translator(
    rule: AcceptanceRule, settings: Settings = SETTINGS, longest: int = 59
) -> SpeculativeTranslator:
    dictionary = Dictionary([*"abcde"])
    table = random_table() + 20
    method = Method(ScriptedDrafter(table, SCRIPTS["partly"]), rule, Constant(Constant.Config()))
    strategy = SpeculativeDecoder(TableVerifier(table), method, EngineConfig(max_rows=3))
    return SpeculativeTranslator(
        settings, Codec(dictionary, dictionary), strategy, Limits(60, longest, 4)
    )


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., exactness.Exactness]:
    """What is found where decoders follow these rules: in the dtype of the run, in float64."""

    def checked(
        single: AcceptanceRule, double: AcceptanceRule, longest: int = 59, **changes: Any
    ) -> exactness.Exactness:
        def load(settings: Settings) -> SpeculativeTranslator:
            return translator(double if settings.dtype == "float64" else single, settings, longest)

        monkeypatch.setattr(exactness, "load_translator", load)
        return exactness.check_exactness(replace(SETTINGS, **changes), SENTENCES)

    return checked


def test_an_exact_rule_has_no_differences(check: Callable[..., exactness.Exactness]) -> None:
    found = check(Exact(), Exact())
    assert found.holds
    assert str(found) == "6 of 6 sentences identical to greedy decoding"


@pytest.mark.parametrize("drafter_dtype", [None, "int8"])
@pytest.mark.parametrize("in_float64", [Exact(), Careless(tolerance=1.0)])
def test_a_wrong_decoder_is_found_with_its_gap(
    in_float64: Exact, drafter_dtype: str | None, check: Callable[..., exactness.Exactness]
) -> None:
    """There is no float64 beside a drafter in int8, which is compared with one in float64."""
    found = check(Careless(tolerance=1.0), in_float64, drafter_dtype=drafter_dtype)
    assert found.differences
    assert not found.holds
    for difference in found.differences:
        assert difference.identical_in_float64 == (in_float64 == Exact())
        # The careless rule swaps tokens within its tolerance, and no others.
        assert 0 < difference.gap <= 1.0
        assert f"line {difference.number}" in str(found)
    assert ("DIFFERENT" in str(found)) == (in_float64 != Exact())


def test_a_near_tie_is_excused_only_if_float64_agrees() -> None:
    near = exactness.Difference(3, 2, gap=5e-6, tolerance=1e-4, identical_in_float64=True)
    assert exactness.Exactness(9, [near]).holds
    assert not exactness.Exactness(9, [replace(near, identical_in_float64=False)]).holds
    assert not exactness.Exactness(9, [replace(near, gap=2e-4)]).holds


@pytest.mark.parametrize(("dtype", "holds"), [("float32", False), ("float16", True)])
def test_what_rounding_explains_depends_on_the_dtype(
    dtype: str, holds: bool, check: Callable[..., exactness.Exactness]
) -> None:
    """A step of float16 between 16 and 32 is 0.016 nats."""
    found = check(Careless(tolerance=0.1), Exact(), dtype=dtype)
    assert found.differences
    assert found.holds == holds


def test_settings_without_the_promise_are_refused(
    check: Callable[..., exactness.Exactness],
) -> None:
    refused("beta 1", check, TopBeta(), TopBeta(), beta=3, tau=1.0)


def test_a_drafter_that_shortens_what_is_longest_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = translator(Exact(), longest=8)
    monkeypatch.setattr(exactness, "load_translator", lambda settings: cut)
    found = exactness.check_exactness(SETTINGS, SENTENCES)
    assert found.differences
    assert {difference.position for difference in found.differences} == {8}
    assert not found.holds
