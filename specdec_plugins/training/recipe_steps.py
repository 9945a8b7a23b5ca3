"""A training recipe as commands: from parallel text to a bundle and a report.

The commands are those that a user would type; each can be stopped and continues.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec_plugins.training.pipeline import Step
from specdec_plugins.training.presets import Preset

SAMPLES = "data/samples/en-de.tsv"


@dataclass(frozen=True)
class Job:
    """What a recipe is cooked from, and where."""

    out: str
    source: str
    target: str
    preset: Preset
    train: Sequence[str] = ()  # corpora of scripts/decontaminate.sh
    valid: str = ""
    tests: Sequence[str] = ()
    prepared: str = ""  # a folder of a preparation script, instead of corpora
    research_data: bool = False
    cpu: bool = False
    workers: int | None = None  # GPUs or processes
    drafter_arch: str = "block"  # or block_fast
    precision: str = ""  # of the trainings; empty: fp16 on GPUs, fp32 on CPUs
    ray: str = ""  # address of a Ray cluster to distil on
    report_flags: str = ""  # of scripts/reproduce.sh

    @property
    def pair(self) -> str:
        return f"{self.source}-{self.target}"

    @property
    def data(self) -> str:
        return f"{self.prepared or self.out + '/prepared'}/data-bin"

    @property
    def verifier(self) -> str:
        """The teacher itself where it is not trained again on what it says."""
        return self.path("verifier.pt" if self.preset.retrain_updates else "teacher.pt")

    @property
    def bigrams(self) -> str:
        return self.path("bigrams.safetensors")

    def path(self, name: str) -> str:
        return f"{self.out}/{name}"

    @property
    def machine(self) -> str:
        """Flags of every training."""
        workers = f"--workers {self.workers} " if self.workers else ""
        cpu = "--cpu " if self.cpu else ""
        precision = f"--precision {self.precision} " if self.precision else ""
        return f"{workers}{cpu}{precision}--max-tokens {self.preset.max_tokens} --until $DEADLINE"


def steps(job: Job) -> list[Step]:
    """Everything, in order."""
    return [*_data(job), *_verifier(job), *_drafter(job), *_results(job)]


def _data(job: Job) -> list[Step]:
    if job.prepared:
        return []
    mix, quoted = job.path("mix"), shlex.join
    tests = f"--test {quoted(job.tests)} " if job.tests else ""
    samples = f"--also {SAMPLES} " if job.pair == "en-de" else ""
    research = "--research-data " if job.research_data else ""
    clean = (
        f"scripts/decontaminate.sh --pair {job.pair} --train {quoted(job.train)} "
        f"--valid {shlex.quote(job.valid)} {tests}{samples}{research}--out {mix}"
    )
    names = [f"{mix}/test{number or ''}.tsv" for number in range(len(job.tests))]
    prepare = (
        f"scripts/prepare-tsv.sh --src {job.source} --tgt {job.target} --train {mix}/train.tsv "
        f"--valid {mix}/valid.tsv {f'--test {quoted(names)} ' if names else ''}"
        f"--merges {job.preset.merges} --max-length {job.preset.max_words} "
        f"--max-ratio {job.preset.max_ratio:g} "
        f"--out {job.path('prepared')}"
    )
    return [
        Step("mix the training files without held-out sentences", clean, (mix,)),
        Step("prepare tokens, subwords, binary data", prepare, (job.path("prepared"),)),
    ]


def _verifier(job: Job) -> list[Step]:
    p = job.preset
    sizes = (
        f"--encoder-layers {p.encoder_layers} --decoder-layers {p.verifier_layers} "
        f"--width {p.width} --ffn {p.ffn} --heads {p.heads} --dropout {p.dropout:g}"
    )

    def train(data: str, save: str, lr: float, warmup: int, updates: int, start: str) -> str:
        return (
            f"scripts/train-verifier.sh --data {data} --save-dir {job.path(save)} {start}{sizes} "
            f"--lr {lr:g} --warmup {warmup} --updates {updates} --batch-tokens {p.verifier_tokens} "
            f"{job.machine} -- {_saving(p)}"
        )

    first = train(
        job.data, "teacher", p.verifier_lr, p.verifier_warmup, p.verifier_updates, start=""
    )
    start = f"--from {job.path('teacher.pt')} "
    again = train(
        job.path("distilled"), "verifier", p.retrain_lr, p.retrain_warmup, p.retrain_updates, start
    )
    found = [
        _training("train the teacher", first, job.path("teacher"), p.verifier_updates),
        _average(job, "teacher"),
        _distillation(job),
    ]
    count = f"scripts/count-bigrams.sh {job.path('distilled')} --output {job.bigrams}"
    found.append(Step("count what follows what in it", count, (job.bigrams,)))
    if p.retrain_updates:
        title = "train the verifier on it"
        found += [_training(title, again, job.path("verifier"), p.retrain_updates)]
        found += [_average(job, "verifier")]
    return found


def _distillation(job: Job) -> Step:
    distilled = job.path("distilled")
    ray = f" --ray {shlex.quote(job.ray)}" if job.ray else ""
    # A weak teacher repeats itself without end on some sentences.
    limits = "--max-len-a 2 --max-len-b 20"
    command = (
        f"scripts/distill.sh {job.data} --path {job.path('teacher.pt')} --output {distilled} "
        f"--beam {job.preset.beam} {limits} --until $DEADLINE{' --cpu' if job.cpu else ''}{ray}"
    )
    return Step("distil the training set", command, (distilled, f"{distilled}.parts"))


def _drafter(job: Job) -> list[Step]:
    p = job.preset
    command = (
        f"scripts/train.sh --data {job.path('distilled')} --verifier {job.verifier} "
        f"--save-dir {job.path('drafter')} --arch {job.drafter_arch} --block-size {p.block_size} "
        f"--decoder-layers {p.drafter_layers} --dropout {p.dropout:g} --lr {p.drafter_lr:g} "
        f"--warmup {p.drafter_warmup} --updates {p.drafter_updates} "
        f"--batch-tokens {p.drafter_tokens} --best-by loss {job.machine} -- {_saving(p)}"
    )
    return [
        _training("train the drafter", command, job.path("drafter"), p.drafter_updates),
        _average(job, "drafter"),
    ]


def _results(job: Job) -> list[Step]:
    bundle, root = job.path("bundle"), job.prepared or job.path("prepared")
    convert = (
        f"scripts/convert.sh bundle {job.data} --AR-path {job.verifier} "
        f"--path {job.path('drafter.pt')} --bigrams {job.bigrams} --bpe-codes {root}/bpe.codes "
        f"--source-lang {job.source} "
        f"--target-lang {job.target} --output {bundle}"
    )
    found = [Step("bundle both models", convert, (bundle,))]
    num_tests = len(job.tests) if not job.prepared else 1
    for number in range(num_tests):
        name = f"test{number or ''}"
        report = (
            f"scripts/reproduce.sh {bundle} --input {root}/raw/{name}.{job.source} "
            f"--reference {root}/raw/{name}.{job.target} --output {job.path(f'report-{name}')} "
            f"--training {job.out} {'--cpu ' if job.cpu else ''}{job.report_flags}"
        )
        outputs = [job.path(f"report-{name}.{ending}") for ending in ("md", "json")]
        found.append(Step(f"report on {name}", report.strip(), outputs))
    return found


def _saving(preset: Preset) -> str:
    return (
        f"--save-interval-updates {preset.save_updates} --keep-interval-updates {preset.averaged} "
        "--no-epoch-checkpoints --log-format simple --log-interval 20"
    )


def _training(title: str, command: str, folder: str, updates: int) -> Step:
    return Step(title, command, (folder,), progress(updates))


def _average(job: Job, name: str) -> Step:
    preset = job.preset
    command = (
        f"scripts/average-checkpoints {job.path(name)} --last {preset.averaged} --by update "
        f"--output {job.path(f'{name}.pt')}"
    )
    return Step(f"average the {name}", command, (job.path(f"{name}.pt"),))


def progress(total: int) -> Callable[[str], str | None]:
    """How far a training is, from a line of its log."""

    def read(line: str) -> str | None:
        found = re.search(r"train_inner.*?\bloss=([\d.]+).*?num_updates=(\d+)", line)
        return found and f"update {found[2]} of {total}, loss {found[1]}"

    return read
