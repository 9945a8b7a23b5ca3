"""A run as Markdown: a table for each number of threads and each batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.comparison import markdown
from benchmarks.results import Figures, Results, Setting, ratios, spread
from benchmarks.rows import GREEDY

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


def report(results: Results) -> str:
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
    """One setting's rows."""
    num_sentences = results.record["num_sentences"]
    cells = results.at(*setting)
    return markdown(_HEADER, [_row(results, setting, cell, num_sentences) for cell in cells])


def _row(results: Results, setting: Setting, cell: Figures, num_sentences: int) -> list[str]:
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
        f"{setting['min_len']} to {setting['max_len']} target tokens for every row.",
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
        "own greedy decoding in the precision of the row, on the threads that suit them best.",
        "* Memory: what the process of a row took at most beyond an idle one with torch loaded "
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
