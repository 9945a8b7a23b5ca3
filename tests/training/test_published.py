"""Every command of docs/published.md, in its order, with small models and without a GPU."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from specdec_plugins.corpus.checkpoints import LAST, num_updates
from specdec_plugins.formats.checkpoints import load_checkpoint
from tests.bundles import ROOT
from tests.programs import Done, run
from tests.warm_python import warm_python

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

PAGE = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
SMALL = {
    "--fp16": "--cpu",
    "--arch transformer": "--arch transformer --encoder-layers 6 --encoder-embed-dim 512 "
    "--decoder-layers 6 --decoder-embed-dim 512",
    "layers 6": "layers 1",
    "dim 512": "dim 16",
    '{"beam":5}': '{"beam":5,"max_len_b":9}',
    "--workers 8": "--workers 1",
    "--gen-subset test --beam 5": "--gen-subset test --beam 5 --max-len-b 9 --cpu",
    "--save-dir another": "--save-dir another --cpu --updates 1 --warmup 1 --max-tokens 99 "
    "--batch-tokens 99 --block-size 3",
}
VARIABLES = {
    "src": "en", "tgt": "de", "text": "text", "bin_path": "bin", "data_dir": "bin",
    "model_path": "text", "dropout": "0.1", "lr": "1e-2", "update_freq": "1", "seed": "1",
    "warmup": "2", "max_tokens": "100", "update": "2", "size": "3", "block_size": "3",
    "AR_checkpoint_path": f"verifier/{LAST}", "checkpoint_path": f"drafter/{LAST}", "beta": "1",
    "tau": "0", "batch": "5", "beam": "1", "strategy": "specdec", "input_path": "text/test.en",
    "output_path": "out.de",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A copy of the repository with text, which the commands fill, and its programs."""
    folder = tmp_path_factory.mktemp("published")
    for name in ("train.py", "encoder_initial.py", "inference.py"):
        shutil.copy(ROOT / name, folder)
    for name in ("scripts", "specdec_plugins"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "text").mkdir()
    for language in ("en", "de"):
        (folder / "text" / f"dict.{language}.txt").symlink_to(data / f"dict.{language}.txt")
        for split, file in (("train", "train"), ("valid", "valid"), ("test", "valid")):
            target = folder / "text" / f"{split}.{language}"
            target.symlink_to(data.parent / f"{file}.{language}")
    (folder / "programs").mkdir()
    modules = {f"fairseq-{name}": f"-m fairseq_cli.{name}" for name in ("preprocess", "generate")}
    for name, module in {"python": "", "specdec": "-m specdec_plugins.cli", **modules}.items():
        program = folder / "programs" / name
        program.write_text(f'#!/bin/sh\nexec {warm_python()} {module} "$@"\n')
        program.chmod(0o700)
    return folder


def commands(heading: str) -> str:
    """The commands of a section, in a shell's words."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    text = "".join(re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    for large, small in SMALL.items():
        text = text.replace(large, small)
    return text


def shell(place: Path, script: str, **changes: str) -> Done:
    path = f"{place / 'programs'}{os.pathsep}{os.environ['PATH']}"
    python = {"PATH": path, "PYTHON": warm_python()}
    words = ["bash", "-euo", "pipefail", "-c", script]
    return run(*words, cwd=place, **python, **{**VARIABLES, "max_epoch": "10", **changes})


def test_the_commands_that_the_page_names_are_those_that_it_shows() -> None:
    named = re.findall(r"\[[^\]]+\]\(#([\w-]+)\)", PAGE)
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert {h.lower().replace(" ", "-") for h in headings} == {"models-and-dictionaries", *named}


def test_they_lead_from_text_to_a_score(place: Path) -> None:
    shell(place, commands("Data"))
    log = shell(place, commands("Verifier")).stdout
    line, *_ = re.findall(r"valid on 'valid' subset .*", log)
    assert "| bleu " in line
    assert "| bsz 11 " in line  # all sentences
    # It resumes, though fairseq's BLEU leaves numbers in its checkpoints that torch refuses.
    log = shell(place, commands("Verifier"), max_epoch="20").stdout
    (at,) = re.findall(r"Loaded checkpoint verifier/checkpoint_last.pt \(epoch 11 @ (\d+)", log)
    assert num_updates(load_checkpoint(place / "verifier" / LAST)) == 2 * int(at)

    shell(place, commands("Distilled data") + commands("Drafter"))
    for name, updates in (("drafter", 2), ("another", 1)):
        assert num_updates(load_checkpoint(place / name / LAST)) == updates

    told = shell(place, commands("Decoding") + commands("Compound-split BLEU")).stdout
    assert len((place / "times.jsonl").read_text().splitlines()) == 11
    texts = [(place / name).read_text() for name in ("out.de", "output/test.de")]
    greedy = commands("Decoding").split("python inference.py")[1]
    shell(place, f"python inference.py {greedy}", strategy="AR", output_path="greedy.de")
    assert texts == [(place / "greedy.de").read_text()] * 2
    assert {(place / name).exists() for name in ("beam5.de", "drafter.de")} == {True}
    assert len(re.findall(r"^T-", (place / "generate.log").read_text(), re.MULTILINE)) == 11
    assert re.search(r"BLEU4 = [\d.]+", told)
