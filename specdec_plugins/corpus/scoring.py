"""Scores translations: sacreBLEU, chrF, compound-split BLEU, the paired bootstrap.

The command lines are those of ``specdec evaluate`` and ``specdec evaluate ref``.

The WMT14 English-German papers report compound-split BLEU: fairseq-score on tokenised text in which
every dash inside a word is a token of its own. It is slightly too high, and comparable with those
papers only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any

from specdec_plugins.corpus import cli, reading
from specdec_plugins.corpus.cli import option
from specdec_plugins.corpus.resume import write_json
from specdec_plugins.errors import UserError, imported, require
from specdec_plugins.formats.output import check_output
from specdec_plugins.formats.pretrained.languages import code_of
from specdec_plugins.formats.text import TextPipeline, join_bpe

_DASH = re.compile(r"(\S)-(\S)")
_TARGET = re.compile(r"T-(\d+)\t(.*)")


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file; only LF ends a line, so that none is split or lost."""
    lines = [line or "" for line in reading.read_lines(path, reading.BadLines())]
    require(bool("".join(lines).strip()), f"{path}: empty; there is nothing to score")
    return lines


def check_same_length(lines: Mapping[str, Sequence[str]]) -> None:
    """Refuse files of different numbers of lines, naming both (keys say which file is which)."""
    (first, expected), *others = lines.items()
    for name, found in others:
        if len(found) != len(expected):
            raise UserError(
                f"{name} has {len(found)} lines, {first} has {len(expected)}; each needs one "
                "line for every source line, even an empty one"
            )


def split_compounds(line: str) -> str:
    """``a-b`` becomes ``a ##AT##-##AT## b``; matches do not overlap, as in the published script."""
    return _DASH.sub(r"\1 ##AT##-##AT## \2", line)


def references_of_log(path: Path) -> list[str]:
    """The T- lines of a fairseq-generate log in the order of the data, BPE joined."""
    found: dict[int, str] = {}
    for line in read_lines(path):
        match = _TARGET.fullmatch(line)
        if match:
            found[int(match[1])] = match[2]
    if not found:
        raise UserError(
            f"{path}: no line begins with T-; give the log of fairseq-generate on a test set that "
            "has references, without --quiet"
        )
    missing = sorted(set(range(max(found) + 1)) - found.keys())
    if missing:
        raise UserError(
            f"{path}: sentence {missing[0]} is missing ({len(missing)} in all); run "
            "fairseq-generate with --required-batch-size-multiple 1 and without "
            "--skip-invalid-size-inputs-valid-test"
        )
    return [join_bpe(found[index]) for index in range(len(found))]


def fairseq_score(outputs: Sequence[str], references: Sequence[str]) -> str:
    """What fairseq-score prints for two lists of tokenised lines, its settings left out."""
    bleu = imported("fairseq.scoring.bleu", "train")
    from fairseq.data import Dictionary

    symbols = Dictionary()
    config = bleu.BleuConfig(pad=symbols.pad(), eos=symbols.eos(), unk=symbols.unk())
    scorer = bleu.Scorer(config)
    for output, reference in zip(outputs, references, strict=True):
        scorer.add(symbols.encode_line(reference), symbols.encode_line(output))
    return str(scorer.result_string())


@dataclass(frozen=True)
class Score:
    """One metric on one output, with the signature to quote beside it."""

    metric: str
    value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """A paired bootstrap test between a baseline and an output (Koehn 2004)."""

    metric: str
    baseline: float
    output: float
    p_value: float  # how often resampling alone gives so large a difference


def _metrics() -> dict[str, Any]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return {"BLEU": BLEU(), "chrF": CHRF()}


def score(outputs: Sequence[str], references: Sequence[str]) -> list[Score]:
    """sacreBLEU (13a, cased) and chrF of detokenised lines."""
    scores = []
    for name, metric in _metrics().items():
        value = metric.corpus_score(outputs, [references]).score
        scores.append(Score(name, value, str(metric.get_signature())))
    return scores


def compound_bleu(outputs: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Compound-split BLEU of detokenised lines: tokenised here, split, scored as fairseq does."""
    from sacrebleu.metrics.bleu import BLEU

    pipeline = TextPipeline("en", language, bpe=None)
    system, reference = (
        [split_compounds(pipeline.encode_target(line)) for line in lines]
        for lines in (outputs, references)
    )
    # Unsmoothed, on the tokens as given: fairseq-score's formula, without running it.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    value = metric.corpus_score(system, [reference]).score
    return Score("compound-split BLEU", value, f"moses tokens|{metric.get_signature()}")


def bootstrap(
    outputs: Sequence[str], baseline: Sequence[str], references: Sequence[str], num_samples: int
) -> list[Comparison]:
    """Paired bootstrap of BLEU and chrF; reproducible (sacreBLEU's seed, SACREBLEU_SEED)."""
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [("baseline", baseline), ("output", outputs)]
    _, results = PairedTest(systems, _metrics(), [references], "bs", num_samples)()
    del results["System"]  # the names of the rows; every other entry is one metric
    rows: dict[str, Any] = dict(results)
    # sacreBLEU counts strictly larger differences, so equal outputs would look significant.
    return [
        Comparison(name, old.score, new.score, 1.0 if old.score == new.score else new.p_value)
        for name, (old, new) in rows.items()
    ]


def ref(args: RefOptions) -> None:
    lines = {
        str(args.log): references_of_log(args.log),
        str(args.output): [join_bpe(line) for line in read_lines(args.output)],
    }
    check_same_length(lines)
    references, outputs = (list(map(split_compounds, found)) for found in lines.values())
    sys.stdout.write(fairseq_score(outputs, references) + "\n")


def _detokenised(path: Path, args: EvaluateOptions) -> list[str]:
    lines = read_lines(path)
    if not args.tokenized:
        return lines
    pipeline = TextPipeline(args.src, args.tgt, bpe=None)
    return [pipeline.decode(join_bpe(line)) for line in lines]


def evaluate(args: EvaluateOptions) -> None:
    languages = (code_of(args.src, "--src"), code_of(args.tgt, "--tgt"))
    if args.json is not None:
        inputs = (args.output, args.reference, args.baseline)
        check_output(args.json, "--json", inputs=inputs, replaced=True)
    lines = {str(args.reference): read_lines(args.reference)}
    for path in (args.output, args.baseline):
        if path is not None:
            lines[str(path)] = _detokenised(path, args)
    check_same_length(lines)
    references, outputs = lines[str(args.reference)], lines[str(args.output)]

    scores = score(outputs, references)
    if languages == ("en", "de"):
        scores.append(compound_bleu(outputs, references, args.tgt))
    comparisons: Sequence[Comparison] = []
    if args.baseline is not None:
        baseline = lines[str(args.baseline)]
        comparisons = bootstrap(outputs, baseline, references, args.samples)

    for found in scores:
        sys.stdout.write(f"{found.metric:<20} {found.value:6.2f}   {found.signature}\n")
    for found_test in comparisons:
        sys.stdout.write(
            f"{found_test.metric:<20} {found_test.output - found_test.baseline:+6.2f}   against "
            f"the baseline's {found_test.baseline:.2f}, p = {found_test.p_value:.4f} (paired "
            f"bootstrap, {args.samples} samples)\n"
        )
    if args.json is not None:
        record = {"scores": list(map(asdict, scores)), "tests": list(map(asdict, comparisons))}
        write_json(args.json, record)


@dataclass(kw_only=True)
class EvaluateOptions:
    """Score translations; with --baseline, also test the difference."""

    # fmt: off
    output: Path = option(MISSING, "translations, one per line", positional=True)
    reference: Path = option(MISSING, "raw references, one per line", positional=True)
    baseline: Path | None = option(None, "translations to compare with, by paired bootstrap")
    src: str = option("en", "source language")
    tgt: str = option("de", "target language")
    tokenized: bool = option(False, "output and baseline are Moses tokens (BPE joined or not): "
        "detokenise them first")
    samples: int = option(1000, "samples of the bootstrap", least=100, most=10_000)
    json: Path | None = option(None, "also write the scores to this file")
    # fmt: on


@dataclass(kw_only=True)
class RefOptions:
    """Compute compound-split BLEU as published."""

    # fmt: off
    log: Path = option(MISSING, "log of fairseq-generate, with references as T- lines",
        positional=True)
    output: Path = option(MISSING, "tokenised translations, one per line", positional=True)
    # fmt: on


EVALUATE = cli.CommandLine("specdec evaluate", evaluate, EvaluateOptions)
REF = cli.CommandLine("specdec evaluate ref", ref, RefOptions)
