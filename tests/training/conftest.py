"""A data folder and a verifier, made once by the command lines themselves."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.programs import Done, python


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
    python(
        "-m", "fairseq_cli.preprocess", "--source-lang", "en", "--target-lang",
        "de", "--trainpref", folder / "train", "--validpref", folder / "valid", "--destdir",
        folder / "bin", "--joined-dictionary",
    )  # fmt: skip
    return folder / "bin"


SIZES = shlex.split(
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --encoder-layers 2 "
    "--encoder-attention-heads 2 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 "
    "--decoder-layers 2 --decoder-attention-heads 2 --share-all-embeddings"
)


STOCK = shlex.split(
    "--arch transformer --task translation --criterion label_smoothed_cross_entropy "
    "--optimizer adam --lr 1e-3 --max-tokens 100 --cpu"
)


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A stock Transformer after two updates, validated by fairseq's own BLEU."""
    folder = tmp_path_factory.mktemp("verifier")
    python(
        "train.py", data, *STOCK, *SIZES, "--max-update", "2", "--save-dir", folder,
        "--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 9}',
    )  # fmt: skip
    return folder / "checkpoint_last.pt"


def decoded(data: Path, folder: Path, *flags: str | Path) -> Done:
    """inference.py on three lines of those words."""
    (folder / "in").write_text("wa wb wc\nwd\nwe wf wa wa\n", encoding="utf-8")
    common = ["-s", "en", "-t", "de", "--cpu", "--max-len-b", "9", "--input-path", folder / "in"]
    return python("inference.py", data, *common, *flags)
