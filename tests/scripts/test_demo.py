"""The demonstration on scripted parts: its systems, what it shows, and when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.decodings import BEAM, EXACT, FAIRSEQ_GREEDY, GREEDY, RELAXED, same_networks
from scripts import demo
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator
from tests.app.toys import translated, translator
from tests.refusals import told


@pytest.fixture(autouse=True)
def samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Eight pairs."""
    lines = [f"{a} {b}\t{translated(f'{a} {b}')} .\n" for a in "abcd" for b in "ef"]
    (path := tmp_path / "samples.tsv").write_text("".join(lines), encoding="utf-8")
    settings = Settings("data", verifier="v", drafter_checkpoint="d", beta=5, tau=2.0)
    monkeypatch.setattr(demo, "make_settings", lambda given: settings)
    return str(path)


def systems() -> dict[str, SpeculativeTranslator]:
    exact = translator(batch=1)
    greedy = same_networks(exact, strategy="AR", drafter_checkpoint=None)
    relaxed = same_networks(exact, beta=5, tau=2.0)
    alike = dict.fromkeys((BEAM, FAIRSEQ_GREEDY, GREEDY), greedy)
    return {**alike, EXACT: exact, RELAXED: relaxed}


def test_it_shows_a_table_sentences_and_exactness(
    samples: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, float]] = []

    def load(settings: Settings, relaxed: tuple[int, float]) -> dict[str, SpeculativeTranslator]:
        assert (settings.beta, settings.greedy_like) == (1, "fairseq")
        seen.append(relaxed)
        return systems()

    monkeypatch.setattr(demo, "load_systems", load)
    assert demo.run(None, None, samples)
    assert seen == [(5, 2.0)]  # as the bundle has it
    said = capsys.readouterr().out
    assert "8 sentences, one at a time" in said
    assert "| SpecDec exact   |" in said
    assert "8/8 (100 %)" in said
    assert "In short: SpecDec exact gave AR greedy's translation of 8 of 8 sentences" in said
    assert "100 % identical to greedy" in said
    assert "   1 a e\n     exact    e e a a\n     by hand  e e a a .\n" in said


def test_without_fairseq_its_rows_are_left_out(
    samples: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "load_translator", lambda settings: systems()[EXACT])
    monkeypatch.setattr(demo, "find_spec", lambda module: None)
    assert demo.run(None, None, samples)
    said = capsys.readouterr().out
    assert "fairseq is not installed, so its rows are left out" in said
    assert "| fairseq" not in said
    assert "vs fairseq" not in said
    assert "times as fast as AR greedy; SpecDec relaxed (" in said


def test_it_fails_where_exact_is_not_exact(samples: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> dict[str, SpeculativeTranslator]:
        other = translator(batch=1)
        other.decoder.verifier.answer = lambda ids: [*ids[:1], 2]  # type: ignore[attr-defined]
        return {**systems(), EXACT: other}

    asked: list[list[int]] = []

    def explain(settings: Settings, sentences: Any, differing: list[int]) -> tuple[bool, str]:
        asked.append(differing)
        return False, "different"

    monkeypatch.setattr(demo, "load_systems", load)
    monkeypatch.setattr(demo, "exactness_of", explain)
    assert not demo.run(None, None, samples, 3)
    assert asked == [[0, 1, 2]]
    assert demo.COMMAND.run(["--test", samples]) == 1


def test_without_a_bundle_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specdec_plugins.app.defaults import make_settings

    monkeypatch.setattr(demo, "make_settings", make_settings)
    assert "no-such-folder" in told(capsys, demo.COMMAND.run, ["no-such-folder"])
