"""What every shell script promises: help from any folder, a strict shell, an error status."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from specdec_plugins import cli
from specdec_plugins.app import main
from specdec_plugins.corpus.cli import CommandLine
from specdec_plugins.serving import cli as serving
from specdec_plugins.training import initial
from tests.programs import script
from tests.refusals import told

PLACES = [cli._place(place) for place, _ in cli.COMMANDS.values() if place.endswith(".run")]
COMMANDS = [
    *(getattr(import_module(module), name.removesuffix(".run")) for module, name in PLACES),
    *(initial.COMMAND, main.INFERENCE, serving.COMMAND),
]


@pytest.mark.integration
def test_help_and_a_flag_that_does_not_exist(tmp_path: Path) -> None:
    helped = script("prepare-wmt16-en-ro.sh", "--help", cwd=tmp_path)
    assert helped.stderr == ""
    assert helped.stdout.startswith("Usage: specdec prepare wmt")
    refused = script("prepare-wmt16-en-ro.sh", "--no-such-flag", cwd=tmp_path, expect=2)
    assert (refused.stdout, refused.stderr.count("\n")) == ("", 1)
    assert refused.stderr.startswith("specdec prepare wmt: error: ")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_wrong_flag_is_refused_in_one_line(
    command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, command.parse, "--no-such-flag")
    assert said.startswith(f"{command.name}: error: ")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_flag_is_explained(command: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse("--help")
    text = re.sub(r"[│\s]+", "", capsys.readouterr().out)  # of lines and boxes
    assert all(one.help and one.flag[:20] in text for one in command.arguments)
    assert all(one.told.count("(default") < 2 for one in command.arguments)
    assert "None" not in text
    assert "default:False" not in text


PREPARED = [
    f"work/wmt14-en-de/{name}"
    for name in ("data-bin/dict.en.txt", "data-bin/dict.de.txt", "bpe/test.en")
]
TRAINED = ("drafter/checkpoint_last.pt", "verifier/checkpoint_last.pt")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder as the scripts of preparation and training leave it, with empty files."""
    for name in (*PREPARED, *TRAINED, "bundle/bundle.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "folder", "made"),
    [
        (["--beta", "3"], "work/wmt14-en-de/data-bin", True),
        (["--output-path", "there"], "work/wmt14-en-de/data-bin", False),
        (["--help"], "work/wmt14-en-de/data-bin", False),
        (["other/data-bin", "--quiet"], "other/data-bin", True),
        (["bundle"], "bundle", False),  # which needs nothing else
    ],
)
def test_inference_takes_what_the_other_scripts_write(
    flags: list[str], folder: str, made: bool, prepared: Path
) -> None:
    _, first, *words = script("inference.sh", *flags, cwd=prepared, PYTHON="echo").stdout.split()
    assert (first, words.count(folder)) == (folder, 0)
    assert words[-1] == flags[-1] or folder == "bundle"
    if folder != "bundle":
        source = Path(folder).with_name("bpe") / "test.en"
        assert words[words.index("--input-path") + 1] == str(source)
        assert words[words.index("--output-path") + 1] == "output/test.de"
    else:
        assert not {"--path", "--AR-path", "--input-path", "--remove-bpe"} & {*words}
    assert (prepared / "output").exists() == made
