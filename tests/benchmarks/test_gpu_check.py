"""What scripts/gpu-check.sh finds, reports and refuses; two of its parts are rehearsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import check, parts, words
from benchmarks.gpu.place import BUNDLED, FAILED, NOT_DONE, OK, Check, Place
from benchmarks.gpu.rounds import costs, kernels
from specdec_plugins.app.exactness import forced_logits, next_logits
from specdec_plugins.app.translator import load_translator
from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from tests.refusals import told


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The CPU in the place of a GPU, and two sentences."""
    for name in ("logs", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "work/text.txt").write_text("Good morning.\nHe reads a book.\n", encoding="utf-8")
    return Place(tmp_path, "cpu")


def test_every_drafter_rule_and_schedule_is_decoded_with() -> None:
    made = words.decodings().values()
    for registry, field in ((DRAFTERS, "drafter"), (RULES, "rule_name"), (SCHEDULES, "schedule")):
        assert {getattr(settings, field) for settings in made} == set(registry.names())


def test_words_that_differ_need_a_near_tie(place: Place) -> None:
    done = words.Words(place, "float32")
    settings = words.settings_of(BUNDLED, {})
    assert done.check(settings) == "2 sentences, all words the same"
    relaxed = words.settings_of(BUNDLED, {"beta": 3, "tau": 1.0})
    in_16_bits = words.Words(place, "bfloat16").check(relaxed)
    assert in_16_bits.startswith("2 sentences, no word more than")

    decoder = load_translator(words._in_double(settings)).decoder
    assert isinstance(decoder, SpeculativeDecoder)
    for request, ids in done.found(settings, load_translator(words._in_double(settings))):
        logits = forced_logits(decoder.verifier, request, ids)
        torch.testing.assert_close(logits[2], next_logits(decoder.verifier, request, ids[:2]))
        assert done._gap(settings, request, ids) == 0
        wrong = [*ids[:2], ids[2] + 1, *ids[3:]]
        with pytest.raises(AssertionError, match="token 2: .* below what the rule allows"):
            done._gap(settings, request, wrong)


def test_a_failing_check_is_named_and_the_rest_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [
        Check("bad", "2", lambda: str(1 // 0)),
        Check("good", "a word", lambda: "word"),
        Check("never", "a word", lambda: "word", needs=("no_such_module",)),
    ]
    monkeypatch.setitem(parts.PARTS, "toys", parts.Part(1, lambda _: checks))
    parts.run_part("toys", place)
    path = place.folder / "work/toys.jsonl"
    found = {c["check"]: (c["status"], c["found"]) for c in check.ended("toys", path, None)}
    assert found == {
        "bad": (FAILED, "ZeroDivisionError: integer division or modulo by zero"),
        "good": (OK, "word"),
        "never": (NOT_DONE, "no_such_module not installed"),
    }
    with path.open("a", encoding="utf-8") as file:
        file.write('{"check": "last", "expected": "an end", "status": "begun"}\n{"check": "la')
    *_, last, whole = check.ended("toys", path, "stopped after 1 s")
    assert (last["check"], last["status"], last["found"]) == ("last", FAILED, "stopped after 1 s")
    assert (whole["check"], whole["status"]) == ("the whole part", FAILED)


@pytest.mark.integration
def test_a_rehearsal_reports_what_failed_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text := tmp_path / "text").write_text("Hello.\tHallo.\n\n", encoding="utf-8")
    folder = tmp_path / "results"
    flags = ["--rehearse", "--text", str(text), "--output", str(folder)]
    # So short a line has no third round.
    assert check.COMMAND.run([*flags, "--parts", "profile", "exactness"]) == 1
    record = json.loads((folder / "gpu-check.json").read_text(encoding="utf-8"))
    failed = {c["check"] for c in record["checks"] if c["status"] == FAILED}
    assert failed == {"one round, float32", "one round, float16"}
    assert [c["part"] for c in record["checks"] if c["status"] == OK] == ["exactness"] * 3
    assert record["machine"].keys() >= {"device", "driver", "torch", "python", "commit"}
    page = (folder / "gpu-check.md").read_text(encoding="utf-8")
    assert "**profile, one round, float32**: expected a table and a trace; found Assert" in page
    assert "Traceback" in (folder / "logs/profile.log").read_text(encoding="utf-8")
    assert "profile: 2 failed\n" in capsys.readouterr().out
    assert check.emptied(folder) == folder
    assert not list(folder.iterdir())


def test_a_part_is_stopped_when_its_time_is_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(check.PARTS, "exactness", parts.Part(0, parts.exactness))
    (done,) = check.run_part("exactness", place.folder, "cpu")
    assert (done["check"], done["found"]) == ("the whole part", "stopped after 0 s")


def test_a_wheel_that_is_missing_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "NEEDED", ("torch", "no-such-package"))
    (done,) = check.install(place.folder, place.folder)
    assert (done["check"], done["status"]) == ("no-such-package", FAILED)
    assert "No matching distribution found for no-such-package" in done["found"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "torch sees no GPU here; add --rehearse"),
        (["--rehearse", "--text", "/nowhere"], "--text /nowhere: cannot be read"),
        (["--rehearse", "--text", "/dev/null"], "--text /dev/null: no text found"),
        (["--rehearse", "--wheels", "/nowhere"], "--wheels /nowhere: no such folder"),
        (["--rehearse", "--parts", "decodings"], "--parts: there is no part 'decodings'"),
        (["--rehearse"], "contains notes.txt, which no run of this program wrote"),
    ],
)
def test_refusals(
    flags: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "notes.txt").touch()
    assert message in told(capsys, check.COMMAND.run, ["--output", str(tmp_path), *flags])
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_costs_of_a_round_are_read_off_its_trace() -> None:
    def event(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}

    trace = [
        {"ph": "M", "name": "process_name"},
        event("cpu_op", "aten::add", 0, 5),
        event("cuda_runtime", "cudaLaunchKernel", 1, 1),
        event("cuda_runtime", "cudaStreamSynchronize", 6, 44),
        event("kernel", "add", 10, 10),
        event("kernel", "mul", 15, 10),  # the last half of it alone
        event("gpu_memcpy", "DtoH", 40, 5),
    ]
    assert costs(trace) == {
        "operations": 1,
        "kernels": 2,
        "copies": 1,
        "launches": 1,
        "synchronisations": 1,
        "busy us": 20.0,
        "gap us": 15.0,
        "us": 50.0,
    }
    assert set(kernels(trace)) == {("add", 1, 10), ("mul", 1, 10), ("DtoH", 1, 5)}
    assert kernels(trace[:2]) == [("aten::add", 1, 5)]
    assert costs(trace[:1])["us"] == 0
