"""Training through the real command lines: a few updates of a tiny drafter."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from specdec_plugins.app import convert
from specdec_plugins.app import main as inference
from specdec_plugins.corpus import distill
from specdec_plugins.corpus.checkpoints import LAST, num_updates
from specdec_plugins.errors import BAD_INPUT, INTERRUPTED, TERMINATED
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.models import read_model
from specdec_plugins.training import run as training_run
from specdec_plugins.training.initial import COMMAND as INITIAL
from tests.programs import talking_to
from tests.refusals import told
from tests.training.conftest import SIZES, call_train, run_train
from tests.warm_python import warm_python

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

PUBLISHED = shlex.split(
    "--arch block --noise block_mask --criterion glat_loss --label-smoothing 0.1 --lr 1e-3 "
    "--warmup-init-lr 1e-7 --stop-min-lr 1e-9 --lr-scheduler inverse_sqrt --warmup-updates 2 "
    "--optimizer adam --adam-eps 1e-6 --task translation_lev_modified --weight-decay 0.01 "
    "--dropout 0.1 --max-source-positions 1000 --max-target-positions 1000 --clip-norm 5 "
    "--src-embedding-copy --log-interval 1 --user-dir specdec_plugins --block-size 3 "
    "--total-up 10 --decoder-learned-pos --encoder-learned-pos --apply-bert-init "
    "--activation-fn gelu --max-tokens 100 --log-format simple --num-workers 0 --cpu"
)

# Flags of `specdec train verifier`.
SMALL = shlex.split("--width 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --ffn 32")
RESTORE = shlex.split("--reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters")


def _command(data: Path, save_dir: Path, *flags: str | Path) -> list[str | Path]:
    return [data, *PUBLISHED, *SIZES, "--save-dir", save_dir, *flags]


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory, verifier: Path, data: Path) -> Path:
    path = tmp_path_factory.mktemp("initial") / "initial.pt"
    words = ["--verifier", verifier, "--output", path, "--data", data]
    assert INITIAL.run(list(map(str, words))) == 0
    return path


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, data: Path, initial: Path
) -> tuple[Path, str]:
    """The folder and the log of two updates from the initial checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    flags = ["--max-update", "2", "--restore-file", initial, *RESTORE]
    return folder, run_train(*_command(data, folder, *flags))


def test_two_updates_train_all_and_validation_sees_every_sentence(
    trained: tuple[Path, str], initial: Path
) -> None:
    folder, log = trained
    (sentences,) = re.findall(r"valid on 'valid' subset.* bsz ([\d.]+)", log)
    assert float(sentences) == 11  # one batch of all
    before = load_checkpoint(initial)["model"]
    after = load_checkpoint(folder / LAST)["model"]
    assert before.keys() == after.keys()
    same = [name for name in before if torch.equal(before[name], after[name])]
    assert same == ["encoder.version", "decoder.version"]
    assert "glat_accu" in log
    assert "glat_context_p=0.5" in log


@pytest.mark.parametrize(("search", "is_ours"), [({}, True), ({"sampling": True}, False)])
def test_a_verifier_is_validated_by_a_beam_of_ours(
    search: dict[str, bool],
    is_ours: bool,
    tmp_path: Path,
    data: Path,
    logs: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fairseq's generator does only what ours cannot."""
    theirs: list[object] = []
    generate = SequenceGenerator.generate

    def told(self: Any, *given: Any, **named: Any) -> Any:
        theirs.append(given)
        return generate(self, *given, **named)

    monkeypatch.setattr(SequenceGenerator, "generate", told)
    words = ["--data", data, "--save-dir", tmp_path, "--cpu", "--updates", 1, "--best-by", "bleu"]
    words += [*SMALL, "--", "--eval-bleu-args", json.dumps({"beam": 3, **search})]
    assert training_run.VERIFIER.run([*map(str, words)]) == 0
    (bleu,) = re.findall(r"valid on 'valid' subset.*\| bleu ([\d.]+)", logs[0])
    best = load_checkpoint(tmp_path / "checkpoint_best.pt")["extra_state"]["val_loss"]
    assert best == float(bleu)
    assert bool(theirs) != is_ours


@pytest.fixture(scope="module")
def reordered(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """The data with two types exchanged in both dictionaries."""
    folder = tmp_path_factory.mktemp("reordered") / "bin"
    shutil.copytree(data, folder)
    for path in folder.glob("dict.*.txt"):
        first, second, *others = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join([second, first, *others]) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("program", ["resumed", "initial", "distilled", "bundled", "AR"])
def test_dictionaries_of_another_content_are_refused(
    program: str,
    data: Path,
    reordered: Path,
    verifier: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, output = str(reordered), str(tmp_path / "out")
    (tmp_path / "in").write_text("wa\n", encoding="utf-8")
    resume = [folder, "--arch", "transformer", *SIZES, "--task", "translation", "--cpu"]
    calls: dict[str, Callable[[], object]] = {
        "resumed": lambda: call_train(*resume, "--save-dir", verifier.parent),
        "initial": lambda: INITIAL.run(
            ["--verifier", str(verifier), "--data", folder, "--output", output]
        ),
        "distilled": lambda: distill.COMMAND.run(
            [folder, "--path", str(verifier), "--output", output, "--cpu"]
        ),
        "bundled": lambda: convert.BUNDLE.run(
            [folder, "--AR-path", str(verifier), "--output", output]
        ),
    }
    decode = [folder, "--AR-path", str(verifier), "--input-path", str(tmp_path / "in")]
    words = [*decode, "--output-path", output, "--strategy", "AR"]
    calls["AR"] = partial(inference.inference, words)
    said = told(capsys, calls[program])
    assert f"{verifier}: was made with another source dictionary" in said
    assert not Path(output).exists()


def test_a_drafter_records_the_dictionaries_of_its_data(
    data: Path, initial: Path, trained: tuple[Path, str], verifier: Path
) -> None:
    both = load_dictionaries(data).digests
    assert load_checkpoint(verifier)["cfg"]["dictionaries"] == both
    assert load_checkpoint(initial)["args"].dictionaries == both
    assert read_model(trained[0] / LAST).digests == both
    assert read_model(verifier).languages == ("en", "de")  # inferred from the names of files


NEVER = 10**6


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_signal_saves_the_update_and_ends(is_launched: bool, tmp_path: Path, data: Path) -> None:
    """Without validating: what sends the signal does not wait for long."""
    late = ["--save-interval", NEVER, "--validate-interval", NEVER]
    words = [sys.executable, "train.py", *_command(data, tmp_path, "--max-update", NEVER), *late]
    number, status = signal.SIGINT, INTERRUPTED
    if is_launched:
        number, status = signal.SIGTERM, TERMINATED
        words = [warm_python(), "-m", "specdec_plugins.cli", "train", "verifier", "--data", data]
        words += ["--save-dir", tmp_path, "--cpu", "--workers", 2, "--updates", NEVER, *SMALL]
        words += ["--batch-tokens", 100, "--max-tokens", 30, "--", "--log-interval", 1, *late]
    with talking_to(*words, process_group=0) as (process, _, out):
        assert any(b"num_updates=3," in line for line in out)
        os.killpg(process.pid, number)
        log = out.read().decode()
    assert process.returncode == status
    assert "valid on" not in log
    (updates,) = re.findall(r"Saved checkpoint .* @ (\d+) updates", log)
    assert num_updates(load_checkpoint(tmp_path / LAST)) == int(updates) >= 3


def test_train_sh_initialises_trains_and_continues(
    tmp_path: Path,
    data: Path,
    verifier: Path,
    logs: list[str],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", warm_python())
    caplog.set_level("INFO", "specdec.corpus")
    words = [
        "--data", data, "--verifier", verifier, "--save-dir", tmp_path / "run",
        "--preset", "en-ro", "--block-size", "3", "--batch-tokens", "100", "--max-tokens", "100",
        "--warmup", "2", "--decoder-layers", "1", "--cpu",
    ]  # fmt: skip
    for updates, flags in ((1, []), (2, ["--disable-validation"])):
        more = ["--updates", updates, "--", "--log-interval", 1, *flags]
        assert training_run.DRAFTER.run([*map(str, (*words, *more))]) == 0
    said = capfd.readouterr().err
    assert "copied      encoder layers" in said
    assert "Warning" not in said
    assert "continuing from" in caplog.text
    assert "'_name'" not in logs[0]  # of the settings, more than a screen full of them
    assert re.search(r"valid on 'valid' subset .* expected_length [\d.]+", logs[0])
    assert "num_updates=2" in logs[1]
    assert "num_updates=1," not in logs[1]
    checkpoint = load_checkpoint(tmp_path / "run" / LAST)
    assert num_updates(checkpoint) == 2
    settings = checkpoint["cfg"]["model"]
    assert (settings.decoder_layers, settings.dropout) == (1, 0.2)
    assert checkpoint["cfg"]["checkpoint"]["best_checkpoint_metric"] == "expected_length"


@pytest.mark.parametrize(
    ("types", "shared"), [("s0 1\n", "all-embeddings"), ("t0 1\n", "decoder-input-output-embed")]
)
def test_embeddings_are_shared_where_the_vocabulary_is_joint(
    types: str, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dict.en.txt").write_text("s0 1\n")
    (tmp_path / "dict.de.txt").write_text(types)
    calls: list[list[str]] = []
    monkeypatch.setattr(training_run, "call", lambda command, _: calls.append(command) or 0)
    folders = ["--data", str(tmp_path), "--save-dir", str(tmp_path / "save")]
    assert training_run.VERIFIER.run([*folders, "--cpu"]) == 0
    ((*_, flag),) = ([word for word in call if word.startswith("--share-")] for call in calls)
    assert flag == f"--share-{shared}"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--best-by", "loss"], "--best-by was removed: the best checkpoint has"),
        (["--data", "/nowhere"], "--data /nowhere: no such folder"),
        (["--verifier", "/nowhere"], "--verifier /nowhere: no such file; expected a checkpoint"),
        (["--verifier", "/"], "--verifier /: a folder; expected a checkpoint"),
    ],
)
def test_train_sh_refuses(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--data", tmp_path, "--verifier", __file__, "--save-dir", tmp_path / "run", "--cpu"]
    said = told(capsys, training_run.DRAFTER.run, [*map(str, common), *flags])
    assert said.startswith("specdec train drafter: error: ")
    assert message in said
    assert not (tmp_path / "run").exists()


def test_train_sh_leaves_nothing_where_the_verifier_does_not_fit(
    tmp_path: Path,
    data: Path,
    verifier: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", warm_python())
    (tmp_path / "bad.pt").write_text("no checkpoint", encoding="utf-8")
    other = tmp_path / "other"
    shutil.copytree(data, other)
    with (other / "dict.de.txt").open("a", encoding="utf-8") as file:
        file.write("more 1\n")
    for folder, checkpoint in ((data, tmp_path / "bad.pt"), (other, verifier)):
        words = ["--data", folder, "--verifier", checkpoint, "--cpu"]
        words += ["--save-dir", tmp_path / "runs" / "drafter"]
        with pytest.raises(SystemExit) as ended:
            training_run.DRAFTER.run(list(map(str, words)))
        assert ended.value.code == BAD_INPUT
        assert "encoder_initial.py: error: " in capfd.readouterr().err
        assert not (tmp_path / "runs").exists()
