"""Flags: the published command line, defaults in one place, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from joblib import cpu_count

from specdec_plugins.app.files import FileOptions
from specdec_plugins.app.main import INFERENCE, Here, read_options
from specdec_plugins.app.settings import Settings, choose_device, use_cores
from specdec_plugins.corpus.cli import CommandLine, build, check, declared, like, option
from specdec_plugins.errors import UserError
from specdec_plugins.serving.translate import COMMAND
from tests.refusals import refused, told

MODELS = ["data", "--path", "d.pt", "--AR-path", "v.pt"]
PUBLISHED = (
    "dicts --path d.pt --user-dir specdec_plugins --task translation_lev_modified --remove-bpe "
    "--max-sentences 20 --source-lang en --target-lang de --iter-decode-max-iter 0 "
    "--iter-decode-eos-penalty 0 --iter-decode-with-beam 1 --gen-subset test --AR-path v.pt "
    "--input-path in.bpe --output-path out --block-size 15 --beta 3 --tau 1.0 --batch 1 --beam 5 "
    "--strategy specdec --cpu --fp16"
)


def parse_options(words: list[str]) -> tuple[Settings, FileOptions]:
    return read_options(INFERENCE.given(words))


def test_the_published_command_line() -> None:
    settings, files = parse_options(PUBLISHED.split())
    other_name = PUBLISHED.replace("--max-sentences", "--batch-size")
    assert (settings, files) == parse_options(other_name.split())
    assert settings == Settings(
        data="dicts",
        verifier="v.pt",
        drafter_checkpoint="d.pt",
        source_lang="en",
        target_lang="de",
        strategy="specdec",
        batch=1,
        beam=5,
        beta=3,
        tau=1.0,
        block_size=15,
        remove_bpe="@@ ",
        device="cpu",
        dtype="float16",
    )
    assert files == FileOptions(input_path="in.bpe", output_path="out")


@pytest.mark.parametrize("words", ["m f -o out", "--model m f -o out", "f -o out --model=m"])
def test_the_model_is_the_first_argument_or_has_a_flag(words: str) -> None:
    assert COMMAND.given(words.split()) == {"data": "m", "file": "f", "output_path": "out"}


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("--beta 5 --beta 3", "beta", 3),  # the last one counts
        ("--path other.pt", "drafter_checkpoint", "other.pt"),
        ("--cpu", "device", "cpu"),
        ("--device cuda:1", "device", "cuda:1"),
        ("--remove-bpe", "remove_bpe", "@@ "),
        ("--remove-bpe none", "remove_bpe", None),
        ("--post-process @@", "remove_bpe", "@@"),
        ("--beta 1", "rule_name", "exact"),
        ("--beta 3", "rule_name", "top_beta"),
        ("--beta 3 --strategy AR", "rule_name", "exact"),
        ('--drafter lookup --drafter-options {"max_ngram":2}', "drafter_options", {"max_ngram": 2}),
    ],
)
def test_flags_become_settings(flags: str, name: str, value: object) -> None:
    settings, _ = parse_options([*MODELS, *flags.split()])
    assert getattr(settings, name) == value


@pytest.mark.parametrize(
    "flags",
    [
        *("--strat AR", "--nonsense", "--dtype int4"),
        *("--beta x", "--drafter-options {", "--drafter-options 3"),
    ],
)
def test_unknown_flags_and_values_end_with_one_line(
    flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flags.split()[0] in told(capsys, parse_options, [*MODELS, *flags.split()])


REMOVED = {**Settings.REMOVED, **FileOptions.REMOVED}


@pytest.mark.parametrize("flag", REMOVED)
def test_a_removed_flag_is_answered_with_what_to_do(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ([flag], [flag, "8"], [f"{flag}=8"]):
        said = told(capsys, parse_options, [*MODELS, *given])
        assert f"{flag} was removed: {REMOVED[flag]}; " in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--beta 0", "beta must be 1 or more"),
        ("--tau -1", "tau must be 0 or more"),
        ("--batch 0", "--batch must be 1 or more"),
        ("--beam 0", "--beam must be 1 or more"),
        ("--block-size 0", "--block-size must be 1 or more"),
        ("--buffer-size 0", "--buffer-size must be 1 or more"),
        ("--max-len-b -1", "--max-len-b must be 0 or more"),
        ("--max-len-a -1", "--max-len-a must be 0 or more"),
        ("--strategy AR --beam 1000", "--beam must be 1 or more and at most 999, not 1000"),
        ("--drafter-dtype int8 --strategy AR", "--drafter-dtype needs a drafter network that can"),
        ("--drafter-dtype int8 --drafter lookup", "--drafter-dtype needs a drafter network that"),
        ("--drafter-dtype int8 --fp16", "--drafter-dtype int8 needs --dtype float32"),
        ("--cuda-graphs --device cpu", "--cuda-graphs needs a GPU"),
        ("--dtype int8 --kernels torch", "int8 needs this project's kernels; omit --kernels torch"),
        ("--drafter-dtype int8 --kernels torch", "int8 needs this project's kernels"),
        ("--lenpen 2", "--lenpen belongs to a beam search; add --strategy AR --beam 5, or omit it"),
        ("--beam 5 --lenpen nan", "--lenpen must be -10 or more and at most 10, not nan"),
        ("--max-len-a inf", "--max-len-a must be a finite number, not inf"),
        (
            "--rule speculative_sampling --temperature 1e300",
            "--temperature must be .* at most 1000",
        ),
        ("--drafter none --block-size 5", "--drafter none drafts nothing; omit --block-size"),
        ("--drafter none --schedule few_rows", "--drafter none drafts nothing; omit --schedule"),
        ("--strategy AR --unkpen 1", "--unkpen belongs to a beam search"),
        ("--strategy AR --beam 2 --rule speculative_sampling", "a beam search takes no --rule"),
        ("--rule exact --beta 2", "--rule exact takes no tolerance"),
        ("--rule speculative_sampling --beta 2", "--rule speculative_sampling takes no tolerance"),
        ("--temperature 0.5", "--temperature 0.5 is for rules that sample, and --rule exact does"),
        ("--beta 3 --top-k 5", "--top-k 5 is for rules that sample, and --rule top_beta does not"),
        ("--strategy AR --top-p 0.5", "add --rule speculative_sampling, or omit --top-p"),
        ("--tau 1", "--tau 1 has no effect with --beta 1; add --beta 3, or omit --tau"),
        ("--strategy drafter --top-k 5", "and --strategy drafter does not"),
        ("--strategy drafter --rule exact", "--strategy drafter verifies nothing"),
        (
            '--strategy AR --schedule-options {"start":2}',
            "no option 'start' of draft schedule 'constant'; its options: none",
        ),
        ("--drafter-data folder", "--drafter-data is for --drafter assistant"),
        ('--drafter lookup --drafter-options {"n":2}', "its options: max_ngram, min_ngram"),
        ('--drafter assistant --drafter-options {"confidence":2}', "confidence must be within"),
        ('--schedule heuristic --schedule-options {"start":0}', "start must be 1 or more"),
        ("--strategy drafter --min-len 2", "it cannot follow --min-len"),
        ("--strategy drafter --greedy-like fairseq", "it cannot follow --min-len"),
        ("--strategy early-exit", "--exit-layer N belong together"),
        ("--exit-layer 2", "--exit-layer N belong together"),
        ("--bpe subword_nmt", "belong together"),
        ("--lowercase", "--lowercase applies to raw text"),
        ("--prefix-size 2", "give one with --prefix-file"),
        ("--prefix-file -", "Only one of"),
        ("--resume", "--resume continues a file"),
        ("--output-path o --json-path ./o", "name the same place"),
        ("--drafter nobody", "There is no drafter named 'nobody'; choose one of: assistant"),
        ("--rule none", "There is no acceptance rule named 'none'; choose one of: exact"),
        ("--strategy fairseq", "'fairseq' was removed: --strategy AR --beam 5 finds the same"),
    ],
)
def test_settings_that_cannot_be(flags: str, message: str) -> None:
    refused(message, parse_options, [*MODELS, *flags.split()])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--AR-path v", "needs the drafter's checkpoint; give it with --path"),
        ("--strategy drafter", "needs the drafter's checkpoint"),
        ("--AR-path v --drafter medusa", "needs the drafter's checkpoint"),
        ("--strategy drafter --drafter medusa --path h", "'medusa' needs a verifier, so it cannot"),
    ],
)
def test_missing_checkpoints(given: str, message: str, tmp_path: Path) -> None:
    refused(message, parse_options, [str(tmp_path), *given.split()])
    parse_options(["data", "--AR-path", "v", "--strategy", "AR"])


def test_a_bundle_that_is_none_is_named(tmp_path: Path) -> None:
    message = f"{tmp_path} holds no bundle.json and no config.json of transformers, so it is not a "
    message += "bundle, and --strategy specdec needs the verifier's checkpoint; give it with --AR-"
    refused(message, parse_options, [str(tmp_path)])
    (tmp_path / "bundle.json").touch()
    for name in ("typo", "bundle.json"):
        with pytest.raises(UserError, match=f"{name}: not a folder; give the folder that holds"):
            parse_options([str(tmp_path / name)])


def test_help_begins_with_the_files_and_ends_with_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        COMMAND.parse("--help")
    text = capsys.readouterr().out
    files = text.index("─ files")
    assert files < text.index("─ models") < text.index("\nexamples:\n") < text.index("0 done")
    assert text.index("[FOLDER] [FILE] [flags]\n") < 60
    examples = text.partition("examples:\n")[2].replace("\\\n", "")
    commands = re.findall(rf"(?m)^ +{COMMAND.name} ([^<#\n]*)", examples)
    assert len(commands) == 5
    assert all(isinstance(COMMAND.given(words.split()), dict) for words in commands)


@pytest.mark.parametrize("name", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there(name: str) -> None:
    refused(rf"^--device {name} cannot be used \(.*\); leave it out", choose_device, name)


def test_threads_are_no_more_than_the_cores_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    before, found = torch.get_num_threads(), list[int]()
    monkeypatch.setattr(
        "specdec_plugins.app.main.load_translator",
        lambda *_, **__: found.append(torch.get_num_threads()),
    )
    here = Here(parse_options(MODELS)[0])
    try:
        for cores in ("1", "9"):
            monkeypatch.setenv("LOKY_MAX_CPU_COUNT", cores)  # read as a container's limit is
            torch.set_num_threads(2)
            here.start(FileOptions(), print)
        assert found == [1, min(2, cpu_count())]
        use_cores(3)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Bounded:
    """Records of other parts declare as `Settings` does, or as it did."""

    port: int = option(8080, "to listen on", least=0, most=65535)
    timeout: float = option(2.5, "seconds", above=0, group="limits", advice="wait a little")
    beta: int = like(Settings, "beta", default=3)
    shown: bool | None = option(None, "at a terminal")
    chosen: Mapping[str, Any] | None = option(None, "by name")

    def __post_init__(self) -> None:
        check(self)


def test_a_record_becomes_flags_and_is_checked() -> None:
    command = CommandLine("bounded", None, Bounded, "")
    helps = {one.name: one.told for one in command.arguments}
    assert helps["timeout"] == "seconds (default: 2.5)"
    assert helps["beta"] == declared(Settings, "beta").help
    given = command.given(["--timeout", "3", "--no-shown", "--chosen", '{"a": 1}'])
    assert given == {"timeout": 3.0, "shown": False, "chosen": {"a": 1}}
    expected = Bounded(8080, 3.0, 3, shown=False, chosen={"a": 1})
    assert build(Bounded, {**given, "else": 1}) == expected
    assert command.parse("--timeout", "3", "--no-shown", "--chosen", '{"a": 1}') == expected
    assert declared(Bounded, "port").bounds == {"ge": 0, "le": 65535}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": 65536}, "--port must be 0 or more and at most 65535, not 65536"),
        ({"timeout": 0}, "--timeout must be above 0, not 0; wait a little"),
        ({"timeout": math.nan}, "--timeout must be above 0, not nan"),
        ({"beta": 0}, "--beta must be 1 or more"),
    ],
)
def test_values_out_of_bounds(values: dict[str, Any], message: str) -> None:
    refused(message, Bounded, **values)
