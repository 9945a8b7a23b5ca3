"""A data folder and a verifier, made once by the programs themselves, in this process."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from specdec_plugins.app import main as inference
from specdec_plugins.training import fairseq_train, run
from tests.programs import logged


def call_train(*words: object) -> int:
    """The exit status of train.py with these words."""
    from fairseq import checkpoint_utils

    with pytest.MonkeyPatch.context() as patch:
        # Where fairseq keeps the best value of a process, which is one training's there.
        patch.delattr(checkpoint_utils.save_checkpoint, "best", raising=False)
        patch.setattr(sys, "argv", ["train.py", *map(str, words)])
        return fairseq_train.main()


def run_train(*words: object) -> str:
    """The log of train.py with these words; it must succeed."""
    with logged() as log:
        assert call_train(*words) == 0
    return log.getvalue()


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the trainings that `specdec train` starts: they run in this process."""
    found: list[str] = []

    def call(command: list[str], _: object) -> int:
        found.append(run_train(*command[3:], "--num-workers", 0))  # behind Python and the module
        return 0

    monkeypatch.setattr(run, "call", call)
    return found


def _run_apart(words: list[str], log: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.exit(call_train(*words))


def start_train(log: Path, *words: object, **environment: str) -> BaseProcess:
    """train.py in a process of its own, which need not import torch and fairseq anew."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["fairseq_cli.train", __name__])
    given = (list(map(str, words)), str(log), environment)
    process = forks.Process(target=_run_apart, args=given)
    process.start()
    return process


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarised copies: 41 training and 11 validation sentences of 1 to 6 words, 12 types."""
    folder = tmp_path_factory.mktemp("data")
    words = [f"w{chr(97 + i)}" for i in range(12)]
    for split, count in (("train", 41), ("valid", 11)):
        lines = [
            " ".join(words[(i * 5 + j * j) % 12] for j in range(i % 6 + 1)) for i in range(count)
        ]
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    from fairseq import options
    from fairseq_cli import preprocess

    words = shlex.split("--source-lang en --target-lang de --joined-dictionary")
    words += ["--trainpref", folder / "train", "--validpref", folder / "valid"]
    words += ["--destdir", folder / "bin"]
    preprocess.main(options.get_preprocessing_parser().parse_args(list(map(str, words))))
    return folder / "bin"


SIZES = shlex.split(
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --encoder-layers 2 "
    "--encoder-attention-heads 2 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 "
    "--decoder-layers 2 --decoder-attention-heads 2 --share-all-embeddings"
)


STOCK = shlex.split(
    "--arch transformer --task translation --criterion label_smoothed_cross_entropy "
    "--optimizer adam --lr 1e-3 --max-tokens 100 --num-workers 0 --cpu"
)


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A stock Transformer after two updates, validated by BLEU."""
    folder = tmp_path_factory.mktemp("verifier")
    run_train(
        data, *STOCK, *SIZES, "--max-update", 2, "--save-dir", folder,
        "--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 9}',
    )  # fmt: skip
    return folder / "checkpoint_last.pt"


def decoded(data: Path, folder: Path, *flags: object) -> str:
    """What inference.py makes of three lines of those words, in double precision."""
    (folder / "in").write_text("wa wb wc\nwd\nwe wf wa wa\n", encoding="utf-8")
    words = [data, "-s", "en", "-t", "de", "--cpu", "--dtype", "float64", "--max-len-b", 9, *flags]
    words += ["--input-path", folder / "in", "--output-path", folder / "out"]
    assert inference.inference([*map(str, words)]) == 0
    return (folder / "out").read_text(encoding="utf-8")
