"""Scores, and the command lines of ref.sh and specdec evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec_plugins.corpus import scoring
from tests.programs import script, specdec
from tests.refusals import refused, told

REFERENCES = [
    "Das gut-bürgerliche Haus steht seit 1990 am Fluss.",
    "Die Katze schläft, der Hund bellt.",
    "Wir fahren morgen mit dem Zug nach Köln.",
    'Er sagte: "Das ist ein E-Mail-Konto."',
    "Ein alter Mann liest eine Zeitung im Park.",
] * 4
OUTPUTS = [line.replace("ein ", "das ").replace("Haus steht", "Haus stand") for line in REFERENCES]
WORSE = [line.replace("der ", "ein ").replace("alter ", "").replace(".", "") for line in OUTPUTS]


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("a-b", "a ##AT##-##AT## b"),
        ("x a-b-c - d", "x a ##AT##-##AT## b-c - d"),  # a character is used once, as published
        ("1990-2000 --", "1990 ##AT##-##AT## 2000 --"),
        ("a -b c- d", "a -b c- d"),
    ],
)
def test_split_compounds(line: str, split: str) -> None:
    assert scoring.split_compounds(line) == split


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def log(path: Path, numbers: list[int]) -> Path:
    lines = ["2024-01-01 | INFO | fairseq_cli.generate | {'x': 'T-1'}"]
    for i in numbers:
        lines += [f"S-{i}\tsource {i}", f"T-{i}\tZi@@ el {i}", f"H-{i}\t-0.1\tZiel", f"P-{i}\t-1"]
    return write(path, [*lines, "Generate test with beam=5"])


def test_references_come_in_the_order_of_the_data_and_none_may_be_missing(tmp_path: Path) -> None:
    path = log(tmp_path / "log", [2, 0, 3, 1])
    assert scoring.references_of_log(path) == [f"Ziel {i}" for i in range(4)]
    with_hole = log(tmp_path / "log", [4, 0, 3])
    refused(r"sentence 1 is missing \(2 in all\)", scoring.references_of_log, with_hole)
    refused("no line begins with T-", scoring.references_of_log, log(tmp_path / "log", []))


def test_files_that_cannot_be_scored(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\n\n")
    refused("empty; there is nothing to score", scoring.read_lines, tmp_path / "x")
    (tmp_path / "x").write_bytes("a\u2028b\x85c\r\n\nd".encode())  # lines end at LF alone
    assert scoring.read_lines(tmp_path / "x") == ["a\u2028b\x85c", "", "d"]
    uneven = {"ref": ["a"] * 3, "out": ["a"] * 2}
    refused("out has 2 lines, ref has 3", scoring.check_same_length, uneven)


@pytest.mark.fairseq
def test_compound_bleu_equals_fairseq_score() -> None:
    found = scoring.compound_bleu(OUTPUTS, REFERENCES, "de")
    pipeline = scoring.TextPipeline("en", "de", bpe=None)
    outputs, references = (
        [scoring.split_compounds(pipeline.encode_target(line)) for line in lines]
        for lines in (OUTPUTS, REFERENCES)
    )
    printed = scoring.fairseq_score(outputs, references)
    assert printed.startswith(f"BLEU4 = {found.value:.2f},")
    assert found.value != pytest.approx(scoring.score(OUTPUTS, REFERENCES)[0].value, abs=0.01)


def test_a_perfect_output_and_a_bootstrap_with_a_direction_that_repeats() -> None:
    assert [round(s.value, 4) for s in scoring.score(REFERENCES, REFERENCES)] == [100.0, 100.0]
    better = scoring.bootstrap(OUTPUTS, WORSE, REFERENCES, 200)
    assert better == scoring.bootstrap(OUTPUTS, WORSE, REFERENCES, 200)
    for test in better:
        assert test.output > test.baseline
        assert test.p_value < 0.05
    same = scoring.bootstrap(OUTPUTS, OUTPUTS, REFERENCES, 200)
    assert all(test.p_value == 1.0 for test in same)


def test_samples_that_no_memory_holds(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a", "b", "--samples", "99999999999"]
    assert "--samples must be 100 or more and at most" in told(capsys, scoring.EVALUATE.run, words)


@pytest.mark.integration
def test_evaluate(tmp_path: Path) -> None:
    output, reference = write(tmp_path / "out", OUTPUTS), write(tmp_path / "ref", REFERENCES)
    baseline = write(tmp_path / "base", WORSE)
    flags = ["--baseline", baseline, "--json", "s.json", "--samples", 100]
    done = specdec("evaluate", output, reference, *flags, cwd=tmp_path)
    assert "compound-split BLEU" in done.stdout
    assert "tok:13a" in done.stdout
    assert "p = " in done.stdout
    content = json.loads((tmp_path / "s.json").read_text())
    assert [score["metric"] for score in content["scores"]][:2] == ["BLEU", "chrF"]
    assert len(content["tests"]) == 2

    # Tokens give the same score as the lines they came from; compounds are for German alone.
    pipeline = scoring.TextPipeline("en", "de", bpe=None)
    tokens = write(tmp_path / "tok", [pipeline.encode_target(line) for line in OUTPUTS])
    again = specdec("evaluate", tokens, reference, "--tokenized", "--tgt", "ro", cwd=tmp_path)
    named = specdec("evaluate", output, reference, "--src", "EN", "--tgt", "de_DE", cwd=tmp_path)
    assert named.stdout.splitlines() == done.stdout.splitlines()[:3]
    assert again.stdout.splitlines() == done.stdout.splitlines()[:2]

    bad = specdec("evaluate", output, reference, "--tgt", "no language", cwd=tmp_path, expect=2)
    assert "--tgt no language: expected the code of a language" in bad.stderr
    fewer = write(tmp_path / "short", OUTPUTS[:-1])
    short = specdec("evaluate", fewer, reference, cwd=tmp_path, expect=2)
    assert "has 19 lines" in short.stderr


@pytest.mark.fairseq
@pytest.mark.integration
def test_ref_script(tmp_path: Path) -> None:
    path = log(tmp_path / "log", [1, 0, 2])
    output = write(tmp_path / "out", ["Ziel 0", "Ziel 1", "Ziel 3"])
    done = script("ref.sh", path, output, cwd=tmp_path)
    # Six words, five of them right; no 3-grams in such short lines.
    assert done.stdout.startswith("BLEU4 = 0.00, 83.3/66.7/")
    fewer = write(tmp_path / "out", ["Ziel 0"])
    bad = specdec("evaluate ref", path, fewer, cwd=tmp_path, expect=2)
    assert bad.stderr.startswith("specdec evaluate ref: error: ")
    assert "has 1 lines" in bad.stderr
