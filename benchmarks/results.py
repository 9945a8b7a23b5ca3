"""A finished run: the queries of table and plots on its record, and its Markdown page."""

from __future__ import annotations

import statistics

from benchmarks.reports import Columns, Record, in_words, number, spread, table
from benchmarks.systems import GREEDY

Setting = tuple[int, int]  # threads, batch


class Results:
    """A record, with the queries of table and plots."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.cells: list[Record] = record["cells"]

    @property
    def settings(self) -> list[Setting]:
        """(threads, batch) in the order of the run."""
        return list(dict.fromkeys((cell["threads"], cell["batch"]) for cell in self.cells))

    @property
    def threads(self) -> int:
        """The largest measured number of threads."""
        return max(threads for threads, _ in self.settings)

    @property
    def reference(self) -> str:
        """The engine whose float32 greedy decoding is the baseline: where the model comes from."""
        return "transformers" if self.record["pair"].get("model") else "fairseq"

    def at(self, threads: int, batch: int) -> list[Record]:
        """The cells of one setting, in the order of the systems."""
        return [c for c in self.cells if (c["threads"], c["batch"]) == (threads, batch)]

    def fastest(self, setting: Setting, engine: str, role: str, dtype: str) -> Record | None:
        """An engine's fastest cell, with any options, or None if it was not measured."""
        wanted = (engine, role, dtype)
        rows = [(cell, cell["row"]) for cell in self.at(*setting)]
        found = [c for c, row in rows if (row["engine"], row["role"], row["dtype"]) == wanted]
        return min(found, key=lambda cell: statistics.median(cell["seconds"]), default=None)


def speed_ups(cell: Record | None, baseline: Record | None) -> list[float]:
    """How many times faster than the baseline, run by run; empty where one was not measured."""
    if cell is None or baseline is None:
        return []
    pairs = zip(baseline["seconds"], cell["seconds"], strict=True)
    return [theirs / mine for theirs, mine in pairs]


def page(results: Results) -> str:
    """The whole run in Markdown: its facts, and every table."""
    record = results.record
    parts = [f"# {record['pair']['name']}, {record['test']}", _facts(record)]
    for threads, batch in results.settings:
        parts.append(f"## Batch {batch}, {threads} thread{'s' * (threads > 1)}")
        setting = (threads, batch)
        parts.append(table(_columns(results, setting), results.at(*setting)))
    return "\n\n".join([*parts, _notes(results)]) + "\n"


def _columns(results: Results, setting: Setting) -> Columns:
    total, reference = results.record["num_sentences"], results.reference

    def same(cell: Record, other: str) -> str:
        differs = cell[f"differs_from_{other}_greedy"]
        return "" if differs is None else f"{total - len(differs)} of {total}"

    def against(cell: Record, engine: str, dtype: str) -> str:
        found = speed_ups(cell, results.fastest(setting, engine, GREEDY, dtype))
        return spread(found) if found else ""

    return {
        "decoding": lambda cell: cell["row"]["name"],
        "precision": lambda cell: cell["row"]["dtype"],
        "BLEU": lambda cell: number(cell["bleu"], missing=""),
        f"same as {reference} greedy": lambda cell: same(cell, reference),
        "same as our greedy": lambda cell: same(cell, "our"),
        "accepted tokens": lambda cell: number(cell["accepted_tokens"], missing=""),
        "ms a sentence": lambda cell: spread([1000 * s / total for s in cell["seconds"]], "", 1),
        "p50": lambda cell: f"{1000 * cell['seconds_a_sentence']['p50']:.1f}",
        "p95": lambda cell: f"{1000 * cell['seconds_a_sentence']['p95']:.1f}",
        "tokens/s": lambda cell: spread(cell["tokens_a_second"], "", 0),
        "memory, MiB": lambda cell: f"{memory:.0f}" if (memory := cell["peak_memory_mib"]) else "",
        f"against {reference} greedy": lambda cell: (
            against(cell, reference, "float32") or against(cell, reference, cell["row"]["dtype"])
        ),
        "against CTranslate2 greedy": lambda cell: against(
            cell, "ctranslate2", cell["row"]["dtype"]
        ),
        "against our greedy": lambda cell: against(cell, "ours", cell["row"]["dtype"]),
        "encode / draft / verify / rest, %": lambda cell: " / ".join(
            f"{100 * share:.0f}" for share in cell["shares"].values()
        ),
    }


def _facts(record: Record) -> str:
    """What the figures depend on."""
    pair, setting = record["pair"], record["setting"]
    peers = f"* Peers: {pair['model']}\n" if pair.get("model") else ""
    return (
        f"* {record['num_sentences']} sentences, {setting['repeats']} repetitions, limits: "
        f"{setting['min_len']} to {setting['max_len']} target tokens for every system.\n"
        f"* Verifier: {pair['verifier']}. Drafter: {pair['drafter']}.\n{peers}"
        f"* {in_words(record['machine'])}.\n"
        f"* `{record['command']}`"
    )


_NOTES = """\
* Medians of the repetitions, with their range in brackets; ratios are taken within one \
repetition. p50 and p95 are over sentences; the time of a sentence is that of its batch.
* Speeds are relative to the greedy search of {reference} in float32, or in the precision of the \
row where that was not measured, and to CTranslate2's and our own greedy decoding in the precision \
of the row, each in its fastest row of the table: with all threads, with one, with several workers \
that share a batch, or with graphs.
* Memory: the peak of a system's process beyond an idle process with torch loaded (on a GPU: of \
torch's tensors, which leaves out CTranslate2's).
* Accepted tokens: tokens a round, with the verifier's own and without the end of the sentence \
(Xia et al. 2023).
"""
_SCRIPTED = """\
* **scripted**: the drafter computes as usual, but its draft is replaced by the verifier's greedy \
output, each token right with the given probability. This shows the engine's cost at that \
acceptance; it is not a result of a trained pair.
"""


def _notes(results: Results) -> str:
    record = results.record
    notes = _NOTES.format(reference=results.reference)
    if record["bleu_signature"]:
        notes += f"* BLEU: sacreBLEU `{record['bleu_signature']}`.\n"
    if any(cell["row"]["role"] == "scripted" for cell in results.cells):
        notes += _SCRIPTED
    return (notes + "".join(f"* {near}\n" for near in record["near_ties"])).rstrip("\n")
