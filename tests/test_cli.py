"""The command specdec: what it lists, hands on and refuses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specdec_plugins
from specdec_plugins import cli
from specdec_plugins.app import convert
from specdec_plugins.corpus import decontaminate
from specdec_plugins.corpus.cli import CommandLine
from specdec_plugins.errors import BAD_INPUT
from specdec_plugins.serving import translate
from tests.bundles import ROOT
from tests.programs import python, run
from tests.refusals import told


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A command leaves ctrl-C ignored, as its process is about to end."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_benchmarks_are_found_from_every_folder_and_refused_without_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from specdec_plugins import cli; "
        "del sys.path[0]; cli.main(['bench', 'sizes', '--help'])"
    )
    assert "--output" in run(sys.executable, "-c", program, cwd=tmp_path).stdout
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(specdec_plugins, "__file__", str(tmp_path / "specdec_plugins/__init__.py"))
    said = told(capsys, cli.main, ["bench", "sizes", "--help"])
    assert "bench sizes is in a clone of the project alone" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translat"], '"translat". Did you mean "translate"?'),
        (["train", "verifer"], '"verifer". Did you mean "verifier"?'),
        (["--nonsense"], "--nonsense"),
        (["convert", "bigrams", "data"], "convert bigrams was removed: "),
    ],
)
def test_what_is_unknown_is_refused_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, cli.main, words)
    assert said.startswith("specdec: error: ")
    assert message in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pair"], "--pair needs a value"),
        (["--pair", "en-de"], "--train must be given"),
        (["--pair", "a", "--train", "b", "--valid", "c", "--out", "d", "--clean", "x"],
         "one argument too many: x"),
        (["--pair", "a", "--train", "b", "--valid", "c", "--out", "d", "--joined", "1"],
         "--joined must be 0 or more and less than 1, not 1.0"),
    ],
)  # fmt: skip
def test_what_a_command_lacks_or_has_too_much_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, decontaminate.COMMAND.run, words)
    assert said.startswith(f"specdec prepare mix: error: {message}")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 100


@pytest.mark.integration
@pytest.mark.parametrize("command", ["", "translate "])
def test_help_of_a_terminal_without_columns_and_to_a_full_disk(command: str) -> None:
    words = f"exec {sys.executable} -m specdec_plugins.cli {command}--help"
    assert "specdec" in run("timeout", "60", "sh", "-c", words, COLUMNS="0").stdout
    failed = run("sh", "-c", f"{words} > /dev/full", expect=BAD_INPUT).stderr
    assert failed.count("\n") == 1
    assert "No space left on device; make room" in failed


@pytest.mark.integration
def test_no_command_is_imported_for_help() -> None:
    code = (
        "import sys; from specdec_plugins.cli import main; main([]); print('torch' in sys.modules)"
    )
    assert python("-c", code).stdout.endswith("False\n")


def test_a_log_holds_few_states_of_a_progress_bar() -> None:
    """tqdm reads the interval when it is imported, which a command does."""
    code = "from specdec_plugins import cli; cli.main(['--version']); import tqdm, time\n"
    code += "for _ in tqdm.tqdm(range(8), miniters=1): time.sleep(0.2)"
    assert python("-c", code).stderr.count("/8 [") < 4


@pytest.mark.parametrize("name", ["serve", "translate"])
def test_an_earlier_name_says_the_new_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [f"specdec-{name}", "--nonsense"])
        with pytest.raises(SystemExit) as ended:
            getattr(cli, name)()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"specdec-{name}: is called specdec {name} now")
    assert (ended.value.code, "--nonsense" in second) == (BAD_INPUT, True)


FILE = """
[translate]
beta = 3
tau = 1.0
progress = false
drafter-options = '{"ban_repeats": true}'

[prepare.mix]
train = ["a", "b"]
"""


def test_a_file_gives_the_flags_that_are_not_given(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    given = translate.COMMAND.given(["--config", str(file), "--tau", "2"])
    assert given == {
        "config": str(file),
        "beta": 3,
        "tau": 2.0,
        "progress": False,
        "drafter_options": {"ban_repeats": True},
    }
    words = ["--pair", "en-de", "--valid", "v", "--out", "o", "--config", file]
    assert decontaminate.COMMAND.parse(*words).train == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[translate]\nbetta = 3", "betta"),
        ("[translate]\nbeta = 'x'", "expected a whole number, not 'x'"),
        ("[translate]\nbeta = 1.5", "expected a whole number, not '1.5'"),  # nor 2
        ("[translate", "mine.toml"),
        ("[translat]\nbeta = 3", "has no table [translate]"),
        (None, "mine.toml: cannot be read"),
        ("folder", "mine.toml: cannot be read (Is a directory)"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    if text == "folder":
        file.mkdir()
    elif text is not None:
        file.write_text(text)
    said = told(capsys, translate.COMMAND.given, ["--config", str(file)])
    assert said.startswith("specdec translate: error: ")
    assert message in said


@pytest.mark.parametrize("command", [translate.COMMAND, convert.BUNDLE])
def test_a_removed_flag_is_answered_with_what_to_do(
    command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, command.given, ["--tree", "3"])
    assert f"{command.name}: error: --tree was removed: drafts are chains" in said


@pytest.mark.fairseq
def test_completion_knows_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # the shell's start file is there
    file = tmp_path / "specdec"
    output(capsys, "--install-completion", "--shell", "bash", "--output", str(file))
    text = file.read_text()
    assert all(
        word in text for word in ("translate", "--block-size", "--encoder-layers", "fairseq")
    )
