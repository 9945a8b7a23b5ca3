"""A finished run: its record as table, plots and bars ask about it, and its Markdown page."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.systems import GREEDY
from specdec_plugins.errors import UserError, refuse

Figures = dict[str, Any]  # of one cell
Record = dict[str, Any]  # of one run
Setting = tuple[int, int]  # threads, batch

_MILLI = 1000
_HEADER = (
    "decoding",
    "precision",
    "BLEU",
    "same as fairseq greedy",
    "same as our greedy",
    "accepted tokens",
    "ms a sentence",
    "p50",
    "p95",
    "tokens/s",
    "memory, MiB",
    "against fairseq greedy",
    "against CTranslate2 greedy",
    "against our greedy",
    "encode / draft / verify / rest, %",
)


class Results:
    """A record as it is asked about by table, plots and bars."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.cells: list[Figures] = record["cells"]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises UserError where the file is not what a run has written."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return cls(record)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not a result of this harness ({type(error).__name__}: {error}); "
                "name the JSON file that python -m benchmarks has written."
            ) from error

    @property
    def settings(self) -> list[Setting]:
        """(threads, batch) in the order of the run."""
        return list(dict.fromkeys((cell["threads"], cell["batch"]) for cell in self.cells))

    @property
    def threads(self) -> int:
        """The largest number that was measured."""
        return max(threads for threads, _ in self.settings)

    def at(self, threads: int, batch: int) -> list[Figures]:
        """The cells of one setting, in the order of the systems."""
        return [c for c in self.cells if (c["threads"], c["batch"]) == (threads, batch)]

    def find(
        self,
        setting: Setting,
        engine: str,
        role: str,
        dtype: str,
        options: Mapping[str, Any] | None = None,
    ) -> Figures | None:
        """One cell of a setting, or None where it was not measured."""
        wanted = (engine, role, dtype, dict(options or {}))
        for cell in self.at(*setting):
            row = cell["row"]
            if (row["engine"], row["role"], row["dtype"], row["options"]) == wanted:
                return cell
        return None

    def fastest(self, setting: Setting, engine: str, role: str, dtype: str) -> Figures | None:
        """An engine's best cell, with whatever options, or None where it was not measured."""
        found = self.find_all(setting, engine, role, dtype)
        return min(found, key=lambda cell: statistics.median(cell["seconds"]), default=None)

    def find_all(self, setting: Setting, engine: str, role: str, dtype: str) -> list[Figures]:
        """The cells of a setting, whatever their options."""
        wanted = (engine, role, dtype)
        rows = [(cell, cell["row"]) for cell in self.at(*setting)]
        return [c for c, row in rows if (row["engine"], row["role"], row["dtype"]) == wanted]


def on_result(prog: str, argv: Sequence[str] | None, show: Callable[[Results, str], object]) -> int:
    """A command line whose only argument is RESULT.json; `show` gets its results and its path."""
    paths = sys.argv[1:] if argv is None else argv
    if len(paths) != 1:
        return refuse(prog, "expected one argument, RESULT.json")
    try:
        show(Results.read(Path(paths[0])), paths[0])
    except UserError as error:
        return refuse(prog, error)
    return 0


def ratios(cell: Figures, baseline: Figures) -> list[float]:
    """How many times faster than the baseline, run by run."""
    pairs = zip(cell["seconds"], baseline["seconds"], strict=True)
    return [theirs / own for own, theirs in pairs]


def spread(values: Sequence[float], unit: str = "x", digits: int = 2) -> str:
    """The median, and from where to where."""
    middle = f"{statistics.median(values):.{digits}f}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns: names to the left, figures to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "| " + " | ".join([cells[0].ljust(widths[0]), *padded[1:]]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(map(line, (header, rule, *rows)))


def page(results: Results) -> str:
    """The whole run: on what, how, and every table."""
    record = results.record
    lines = [f"# {record['pair']['name']}, {record['test']}", ""]
    lines += [*_facts(record), ""]
    for threads, batch in results.settings:
        lines += [
            f"## Batch {batch}, {_threads(threads)}",
            "",
            table(results, (threads, batch)),
            "",
        ]
    return "\n".join([*lines, *_notes(results)]) + "\n"


def _threads(threads: int) -> str:
    return f"{threads} thread" + ("s" if threads > 1 else "")


def table(results: Results, setting: Setting) -> str:
    """One setting's systems."""
    num_sentences = results.record["num_sentences"]
    cells = results.at(*setting)
    return markdown(_HEADER, [_line(results, setting, cell, num_sentences) for cell in cells])


def _line(results: Results, setting: Setting, cell: Figures, num_sentences: int) -> list[str]:
    dtype = cell["row"]["dtype"]
    accepted = cell["accepted_tokens"]
    differs = [cell[f"differs_from_{other}_greedy"] for other in ("fairseq", "our")]
    each = [_MILLI * total / num_sentences for total in cell["seconds"]]
    latency = cell["seconds_a_sentence"]
    baselines = [
        results.find(setting, "fairseq", GREEDY, "float32"),
        results.fastest(setting, "ctranslate2", GREEDY, dtype),
        results.fastest(setting, "ours", GREEDY, dtype),
    ]
    return [
        cell["row"]["name"],
        dtype,
        "" if cell["bleu"] is None else f"{cell['bleu']:.2f}",
        *("" if d is None else f"{num_sentences - len(d)} of {num_sentences}" for d in differs),
        "" if accepted is None else f"{accepted:.2f}",
        spread(each, unit="", digits=1),
        f"{_MILLI * latency['p50']:.1f}",
        f"{_MILLI * latency['p95']:.1f}",
        spread(cell["tokens_a_second"], unit="", digits=0),
        f"{cell['peak_memory_mib']:.0f}" if cell["peak_memory_mib"] else "",
        *("" if other is None else spread(ratios(cell, other)) for other in baselines),
        " / ".join(f"{100 * share:.0f}" for share in cell["shares"].values()),
    ]


def _facts(record: dict[str, Any]) -> list[str]:
    """What the figures depend on."""
    pair, setting = record["pair"], record["setting"]
    facts = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
    note = [f"* **{pair['note']}**"] if pair.get("note") else []
    return [
        *note,
        f"* {record['num_sentences']} sentences, {setting['repeats']} repetitions, limits: "
        f"{setting['min_len']} to {setting['max_len']} target tokens for every system.",
        f"* Verifier: {pair['verifier']}. Drafter: {pair['drafter']}.",
        f"* {facts}.",
        f"* `{record['command']}`",
    ]


def _notes(results: Results) -> Sequence[str]:
    record = results.record
    notes = [
        "* Medians of the repetitions, in brackets from where to where; ratios are taken within "
        "one repetition. p50 and p95 are over sentences: the time of the batch that each was in.",
        "* Comparisons are with fairseq's greedy search in float32, and with CTranslate2's and our "
        "own greedy decoding in the precision of the line, on the threads that suit them best.",
        "* Memory: what the process of a system took at most beyond an idle one with torch loaded "
        "(on a GPU: torch's tensors, which CTranslate2's are none of).",
        "* Accepted tokens: tokens a round, the verifier's own counted and the end of the sentence "
        "not (Xia et al. 2023).",
    ]
    if record["bleu_signature"]:
        notes.append(f"* BLEU: sacreBLEU `{record['bleu_signature']}`.")
    if any(cell["row"]["role"] == "scripted" for cell in results.cells):
        notes.append(
            "* **scripted**: the drafter computes as always, and then the verifier's greedy output "
            "is proposed instead, each token right with the given probability. It shows what the "
            "engine costs at that acceptance, and is no result of a trained pair."
        )
    for near in record["near_ties"]:
        notes.append(f"* {near}")
    return notes
