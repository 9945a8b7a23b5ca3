"""scripts/compare_ways.py on the caption models: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bundles import CAPTIONS as MODELS
from tests.programs import python

LINES = ["Two dogs play in the snow.", "A man in a red hat.", "A child jumps."]
REFERENCES = ["Zwei Hunde spielen im Schnee.", "Ein Mann mit rotem Hut.", "Ein Kind springt."]


def compare(folder: Path, ways: list[dict[str, object]], *more: str) -> str:
    for name, lines in (("in", LINES), ("ref", REFERENCES)):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "ways.json").write_text(json.dumps(ways), encoding="utf-8")
    command = ["scripts/compare_ways.py", str(MODELS), "-s", "en", "-t", "de"]
    command += ["--AR-path", str(MODELS / "verifier.pt"), "--tokenizer", "moses", "--cpu"]
    command += ["--bpe", "subword_nmt", "--bpe-codes", str(MODELS / "bpe.codes")]
    command += ["--input-path", str(folder / "in"), "--ways", str(folder / "ways.json")]
    command += ["--report", str(folder / "report"), "--threads", "1", *more]
    return python(*command).stdout


def test_a_table_a_record_and_a_picture(tmp_path: Path) -> None:
    block = {"drafter": "block", "drafter_checkpoint": str(MODELS / "drafter.pt")}
    ways = [{"name": "block", **block}, {"name": "lookup", "drafter": "lookup", "block_size": 3}]
    options = ["--reference", str(tmp_path / "ref"), "--repeats", "2", "--sentences", "2"]
    said = compare(tmp_path, ways, *options, "--clock", "cpu")
    rows = [line.split("|")[1].strip() for line in said.splitlines()]
    assert rows[0] == "decoding"
    assert rows[2:] == ["AR greedy", "block", "lookup"]
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == said
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert record["clock"] == "cpu"
    assert [row["num_same"] for row in record["rows"]] == [2, 2, 2]
    assert all(len(row["total"]) == 2 and row["bleu"] > 10 for row in record["rows"])
    assert str(tmp_path) not in record["command"]
