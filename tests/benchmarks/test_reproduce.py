"""The reproduction's figures and tables, on translations whose figures are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import reproduce
from benchmarks.decodings import BEAM, GREEDY, Decoding
from benchmarks.plots import REPRODUCTION_PLOTS, chosen_rows, draw_reproduction
from benchmarks.reproduce import figures, report
from specdec_plugins.formats.output import lock
from tests.bundles import captions
from tests.refusals import refused, told

SOURCES = ["a b c", " ".join(["w"] * 15), "d e", " ".join(["w"] * 40)]
REFERENCES = [f"the dog number {n} sees the small cat in its garden" for n in range(4)]


def decoding(name: str, milliseconds: float, rounds: list[int], wrong: int = 0) -> Decoding:
    """Translations of which the first so many are wrong; every sentence took those rounds."""
    texts = ["nothing at all"] * wrong + REFERENCES[wrong:]
    same = {"emitted": rounds, "finish_reason": "eos", "milliseconds": milliseconds}
    return Decoding(name, [{"text": text, "tokens": text.split(), **same} for text in texts])


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    points = reproduce.grid([5, 25], [1, 3], [1.0, 3.0])
    decodings = [
        decoding(BEAM, 40, []),
        decoding(GREEDY, 20, [1] * 12),
        *(decoding(point.name, 10, [6, 6], point.beta // 3) for point in points),
    ]
    common = {"title": "en-de on test", "command": "specdec bench reproduce x", "machine": {"p": 1}}
    common |= {"batch": 1, "threads": 1}
    common |= {"dtype": "float32", "pair": "en-de", "bootstrap_samples": 100}
    return {**common, **figures(decodings, points, SOURCES, REFERENCES, "de", 100)}


def test_figures(record: dict[str, Any]) -> None:
    beam, greedy, exact, relaxed, *_ = record["rows"]
    assert set(beam["scores"]) == {"BLEU", "chrF", "compound-split BLEU"}
    assert exact["scores"]["BLEU"] == pytest.approx(100)
    assert (beam["accepted_tokens"], exact["accepted_tokens"]) == (None, 5.5)
    assert (exact["speed_against_greedy"], exact["speed_against_beam"]) == (2, 4)
    assert (exact["differs_from_greedy"], relaxed["differs_from_greedy"]) == ([], [1])
    assert exact["against_beam"]["BLEU"] == {"difference": 0, "p": 1}
    assert relaxed["against_beam"]["BLEU"]["difference"] < 0
    assert [(p["from"], p["sentences"]) for p in exact["by_length"]] == [(1, 2), (11, 1), (31, 1)]
    assert relaxed["by_length"][1]["BLEU"] == pytest.approx(100)
    # One system of each beta stands for the others.
    names = [row["name"] for row in chosen_rows(record["rows"])]
    assert names == [BEAM, GREEDY, "k 25, exact", "k 25, beta 3, tau 3"]


def test_the_report_says_how_and_beside_what(record: dict[str, Any]) -> None:
    text = report(record, ["x.accepted.svg"])
    for said in (
        *("specdec bench reproduce x", "tok:13a", "Published (Xia et al. 2023", "| k 5, exact "),
        *("![x.accepted.svg](x.accepted.svg)", "4 sentences, one at a time", " 31 or more |"),
    ):
        assert said in text
    assert "Published" not in report({**record, "pair": "en-ro"}, [])
    assert "4 sentences are too few for these scores" in text
    assert "too few" not in report({**record, "num_sentences": 100}, [])
    assert "4 sentences, 16 at a time" in report({**record, "batch": 16}, [])


def test_a_report_on_a_part_of_a_file_says_what_training_has_seen_of_it(
    record: dict[str, Any], tmp_path: Path
) -> None:
    (test := tmp_path / "test.tsv").write_text(
        "no\tnein\nA dog.\tEin Hund.\nA cat.\tKatze\n...\t-\n"
    )
    (mix := tmp_path / "train.tsv").write_text("a DOG\tHund\n!\t?\nCat\tkatze\nA dog\tkatze\n")
    words = ("bundle", "--output", "x", "--seen", mix, "--test", f"{test}:2-")
    args = reproduce.COMMAND.parse(*words)
    sentences, references = reproduce.read_test(args)
    sources = [sentence.text for sentence in sentences]
    assert (sources, references) == (["A dog.", "A cat.", "..."], ["Ein Hund.", "Katze", "-"])
    seen = reproduce.seen_in_training(args.seen, sources, references)
    assert seen == {"sources": 1, "targets": 1}
    assert "has 1 of the sources and 1 of the references" in report({**record, "seen": seen}, [])
    seen = dict.fromkeys(seen, 0)
    assert "The training text has none of these" in report({**record, "seen": seen}, [])
    for given in ((), ("--test", test, "--input", test, "--reference", test)):
        args = reproduce.COMMAND.parse("bundle", "--output", "x", *given)
        refused("give either --test, or --input and --reference", reproduce.read_test, args)


def test_plots_are_the_same_each_time(record: dict[str, Any], tmp_path: Path) -> None:
    first, again = (
        {path.name: path.read_bytes() for path in draw_reproduction(record["rows"], output)}
        for output in [str(tmp_path / "x")] * 2
    )
    assert set(first) == {f"x.{name}.svg" for name in REPRODUCTION_PLOTS}
    assert first == again


@pytest.mark.fairseq
def test_a_run_that_was_stopped_goes_on_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With blocks longer than the bundle's default."""
    words = [str(captions(tmp_path / "pair", defaults={"block_size": 3}))]
    for name, text in (("input", "A man runs.\nA dog.\n"), ("reference", "Ein Mann rennt.\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        words += [f"--{name}", str(tmp_path / name)]
    words += ["--output", str(tmp_path / "report"), "--betas", "1", "--samples", "2", "--cpu"]
    assert "has 1 lines" in told(capsys, reproduce.COMMAND.run, [*words, "--block-sizes", "5"])
    (tmp_path / "reference").write_text("Ein Mann rennt.\nEin Hund.\n", encoding="utf-8")

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(reproduce, "figures", stop)
        assert reproduce.COMMAND.run([*words, "--block-sizes", "2", "5"]) == 130
    assert "stopped; the same command goes on from what is finished" in capsys.readouterr().err
    log = tmp_path / "report.turns.jsonl"
    # What it is of, two sentences, and nothing behind the last line's end.
    assert len(log.read_text(encoding="utf-8").split("\n")) == 4
    said = told(capsys, reproduce.COMMAND.run, [*words, "--block-sizes", "5"])
    assert "was started with a different value of grid" in said
    with log.open("rb") as held:
        lock(held.fileno())  # as another run does
        said = told(capsys, reproduce.COMMAND.run, [*words, "--block-sizes", "2", "5"])
    assert "turns.jsonl: another run is writing it; wait for its end" in said
    assert reproduce.COMMAND.run([*words, "--block-sizes", "2", "5"]) == 0
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| k 2, exact " in text
    assert "| k 5, exact " in text
    assert not log.exists()
