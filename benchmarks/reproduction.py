"""What the reproduction counts, and how it is told: figures of each way, tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Decoding, markdown
from specdec_plugins.corpus import scoring

GREEDY = "AR greedy"
LENGTHS = ((1, 10), (11, 20), (21, 30), (31, None))  # words of the source, both ends included

PUBLISHED = """\
Published (Xia et al. 2023; WMT14 English-German, 6+6 layers, 512 wide, k = 25, one NVIDIA P100):
about 3x in exact mode and 5x relaxed with the quality of beam search; on three sentences of its
README 3.55 accepted tokens in exact mode and 6.18 with beta 5, tau 3. Its speeds are against
fairseq's beam 5 on a GPU; here they are against our own greedy decoding and fairseq's beam 5.
"""


@dataclass(frozen=True)
class Point:
    """A setting of speculation."""

    block_size: int  # tokens
    beta: int
    tau: float  # nats

    @property
    def name(self) -> str:
        if self.beta == 1:
            return f"k {self.block_size}, exact"
        return f"k {self.block_size}, beta {self.beta}, tau {self.tau:g}"


@dataclass(frozen=True)
class Result:
    """One way's translations; point: None for beam search and greedy decoding."""

    point: Point | None
    decoding: Decoding


def figures(
    results: Sequence[Result],
    sources: Sequence[str],
    references: Sequence[str],
    language: str,
    num_samples: int,
) -> dict[str, Any]:
    """All that JSON and tables show. results: beam search first, greedy second."""
    beam, greedy = results[0].decoding, results[1].decoding
    rows = []
    for result in results:
        decoding = result.decoding
        scores = scoring.score(decoding.texts, references)
        if language == "de":
            scores.append(scoring.compound_bleu(decoding.texts, references, language))
        tests = scoring.bootstrap(decoding.texts, beam.texts, references, num_samples)
        rows.append(
            {
                "name": decoding.name,
                "point": None if result.point is None else vars(result.point),
                "scores": {score.metric: score.value for score in scores},
                "signatures": {score.metric: score.signature for score in scores},
                "against_beam": {test.metric: _test(test) for test in tests},
                "differs_from_greedy": [n + 1 for n in decoding.differing(greedy)],
                **_speed(decoding, beam, greedy, range(len(references))),
                "by_length": _by_length(result, beam, greedy, sources, references),
            }
        )
    return {"num_sentences": len(references), "rows": rows}


def _test(test: scoring.Comparison) -> dict[str, float]:
    return {"difference": test.output - test.baseline, "p": test.p_value}


def _speed(
    decoding: Decoding, beam: Decoding, greedy: Decoding, chosen: Sequence[int]
) -> dict[str, Any]:
    """Accepted tokens and speed on some sentences, counted from 0."""

    def seconds(of: Decoding) -> float:
        return sum(of.milliseconds[i] for i in chosen) / 1000 / len(chosen)

    own = seconds(decoding)
    return {
        "accepted_tokens": _part(decoding, chosen).mean_accepted_tokens,
        "seconds_per_sentence": own,
        "speed_against_greedy": seconds(greedy) / own,
        "speed_against_beam": seconds(beam) / own,
    }


def _part(decoding: Decoding, chosen: Sequence[int]) -> Decoding:
    """The same of some sentences."""

    def pick(values: Sequence[Any]) -> list[Any]:
        return [values[i] for i in chosen]

    return Decoding(
        decoding.name,
        pick(decoding.texts),
        pick(decoding.tokens),
        pick(decoding.emitted),
        pick(decoding.ended),
        pick(decoding.milliseconds),
    )


def _by_length(
    result: Result,
    beam: Decoding,
    greedy: Decoding,
    sources: Sequence[str],
    references: Sequence[str],
) -> list[dict[str, Any]]:
    found = []
    for low, high in LENGTHS:
        words = [len(source.split()) for source in sources]
        chosen = [i for i, n in enumerate(words) if n >= low and (high is None or n <= high)]
        if not chosen:
            continue
        part = _part(result.decoding, chosen)
        bleu = scoring.score(part.texts, [references[i] for i in chosen])[0].value
        speed = _speed(result.decoding, beam, greedy, chosen)
        found.append({"from": low, "to": high, "sentences": len(chosen), "BLEU": bleu, **speed})
    return found


def report(record: dict[str, Any], plots: Sequence[str]) -> str:
    """The whole report in Markdown."""
    rows = record["rows"]
    machine = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
    signatures = rows[0]["signatures"]
    together = "one at a time" if record["batch"] == 1 else f"{record['batch']} at a time"
    parts = [
        f"# {record['title']}",
        f"{record['num_sentences']} sentences, {together}, {record['dtype']}. Limits of all: "
        "those of fairseq's search, at most 200 tokens.",
        f"```\n{record['command']}\n```",
        f"Machine: {machine}; torch threads {record['threads']}.",
    ]
    parts += [_pieces(name, found) for name, found in record.get("training", {}).items()]
    if record["pair"] == "en-de":
        parts.append(PUBLISHED.strip())
    parts += ["## All ways", _table(rows, record["num_sentences"])]
    parts.append(
        "Accepted tokens: a round's mean, the verifier's own counted, the end of sentence not. p: "
        f"paired bootstrap of BLEU against beam 5, {record['bootstrap_samples']} samples.\n\n"
        + "\n".join(f"* {metric}: `{signature}`" for metric, signature in signatures.items())
    )
    parts += ["## By sentence length", _length_table(rows)]
    if plots:
        parts += ["## Plots", "\n".join(f"![{name}]({name})" for name in plots)]
    return "\n\n".join(parts) + "\n"


def _pieces(name: str, pieces: Sequence[dict[str, Any]]) -> str:
    """A sentence on how a model was trained."""
    restarts = [str(p["first_update"]) for p in pieces if p["start"] == "optimizer restarted"]
    whole = [p["last_update"] for p in pieces if "last_update" in p]
    text = f"Training of the {name}: {max(whole, default=0)} updates in"
    if len(pieces) == 1:
        return f"{text} one piece."
    text += f" {len(pieces)} pieces"
    if not restarts:
        return f"{text}, each continued with the optimizer of the last."
    return (
        f"{text}; at update {', '.join(restarts)} it went on from float16 weights alone, with an "
        "optimizer that restarted and a short warm-up."
    )


def _table(rows: Sequence[dict[str, Any]], total: int) -> str:
    metrics = list(rows[0]["scores"])
    header = ["decoding", *metrics, "BLEU - beam", "p", "same as greedy", "accepted tokens"]
    header += ["ms a sentence", "vs greedy", "vs beam 5"]
    return markdown(header, [_row(row, metrics, total) for row in rows])


def _row(row: dict[str, Any], metrics: Sequence[str], total: int) -> list[str]:
    test = row["against_beam"]["BLEU"]
    return [
        row["name"],
        *(f"{row['scores'][metric]:.2f}" for metric in metrics),
        f"{test['difference']:+.2f}",
        f"{test['p']:.3f}",
        f"{total - len(row['differs_from_greedy'])} of {total}",
        _number(row["accepted_tokens"]),
        f"{1000 * row['seconds_per_sentence']:.1f}",
        f"{row['speed_against_greedy']:.2f}x",
        f"{row['speed_against_beam']:.2f}x",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _reach(row: dict[str, Any]) -> tuple[int, float]:
    return row["point"]["block_size"], row["point"]["tau"]


def chosen_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Beam search, greedy decoding, and of each beta the longest block with the largest tau."""
    chosen: dict[int, dict[str, Any]] = {}
    for row in rows[2:]:
        point = row["point"]
        best = chosen.get(point["beta"])
        if best is None or _reach(row) > _reach(best):
            chosen[point["beta"]] = row
    return [*rows[:2], *chosen.values()]


def _length_table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["decoding", "source words", "sentences", "BLEU", "accepted tokens", "vs greedy"]
    cells = []
    for row in chosen_rows(rows):
        for part in row["by_length"]:
            span = f"{part['from']} to {part['to']}" if part["to"] else f"{part['from']} or more"
            cells.append(
                [
                    row["name"],
                    span,
                    str(part["sentences"]),
                    f"{part['BLEU']:.2f}",
                    _number(part["accepted_tokens"]),
                    f"{part['speed_against_greedy']:.2f}x",
                ]
            )
    return markdown(header, cells)
