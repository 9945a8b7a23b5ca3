"""The command specdec: what it lists, hands on and refuses."""

from __future__ import annotations

import pytest

import specdec_plugins
from specdec_plugins import cli
from specdec_plugins.errors import BAD_INPUT
from tests.programs import python
from tests.refusals import told


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == 0
    return capsys.readouterr().out


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    listed = output(capsys)
    assert output(capsys, "--help") == listed
    assert all(f" {name.split()[0]} " in listed for name in cli.COMMANDS)
    assert " verifier " in output(capsys, "train")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--version").strip() == specdec_plugins.__version__


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translat"], '"translat". Did you mean "translate"?'),
        (["train", "verifer"], '"verifer". Did you mean "verifier"?'),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_what_is_unknown_is_refused_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, cli.main, words)
    assert said.startswith("specdec: error: ")
    assert message in said


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 100


@pytest.mark.integration
def test_no_command_is_imported_for_help() -> None:
    code = (
        "import sys; from specdec_plugins.cli import main; main([]); print('torch' in sys.modules)"
    )
    assert python("-c", code).stdout.endswith("False\n")


def test_an_earlier_name_says_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["specdec-serve", "--nonsense"])
        with pytest.raises(SystemExit) as ended:
            cli.serve()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("specdec-serve: is called specdec serve now")
    assert (ended.value.code, "--nonsense" in second) == (BAD_INPUT, True)
