"""scripts/drafter.sh: a drafter for whatever model, stopped wherever, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.app import convert, drafter, drafting, report
from specdec_plugins.app.drafting import Training
from specdec_plugins.app.loading import make_settings, read_words
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.corpus.checkpoints import LAST
from specdec_plugins.corpus.cli import UNFINISHED
from specdec_plugins.corpus.resume import write_json
from specdec_plugins.corpus.teacher import DataBin
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.networks import BlockDrafter, Transformer
from specdec_plugins.decoding.networks.transformer import same_encoder
from specdec_plugins.errors import UserError
from specdec_plugins.formats.bundle import read_bundle
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import read_model
from specdec_plugins.training import commands
from tests.bundles import CAPTIONS, ROOT, captions
from tests.formats.pretrained import toys as folders
from tests.refusals import refused
from tests.warm_python import warm_python

pytestmark = pytest.mark.fairseq

TEXT = (ROOT / "data" / "sample" / "train.en").read_text(encoding="utf-8").splitlines()[:300]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.en"
    path.write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def training(tmp_path: Path) -> Training:
    """What a training finds when it begins."""
    counts = {"sentences": 9, "left_out": 1, "seconds": 900}
    write_json(tmp_path / "distilled.json", {"settings": {}, "counts": counts})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "held-out.txt").write_text("a\n")
    given = {"data": tmp_path, "output": tmp_path / "out", "bundle": tmp_path / "verifier"}
    return Training(
        Namespace(
            **given,
            **{"from": None},
            hours=2,
            every=None,
            block_size=8,
            dropout=0.1,
            patience=3,
            model="m",
            until=0,
        )
    )


def opus(folder: Path) -> Path:
    folders.marian_files(folder, folders.lines_of())
    folders.add_model(folder, "marian")
    return folder


class Command:
    """The command line, in a session of its own, as a terminal has it."""

    def __init__(self, *words: object) -> None:
        self.words = [str(word) for word in (ROOT / "scripts" / "drafter.sh", *words)]

    def run(self, until: Callable[[], bool] = lambda: False) -> tuple[int, str]:
        """Status and output; where it gets as far as that, ctrl-C ends it."""
        heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        with subprocess.Popen(
            self.words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHON": warm_python(), "OMP_NUM_THREADS": "1"},
            process_group=0,
            preexec_fn=heed,
        ) as process:
            while process.poll() is None and not until():
                time.sleep(0.02)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            told, _ = process.communicate()
        return process.returncode, told


@pytest.mark.integration
def test_stopped_in_three_steps_it_goes_on_and_decodes_the_same_words(
    text: Path, tmp_path: Path
) -> None:
    model, output = opus(tmp_path / "opus"), tmp_path / "out"
    work = tmp_path / "out.work"
    parts, curve = tmp_path / "out.work" / "distilled.parts", work / "training" / "curve.jsonl"
    command = Command(model, "--text", text, "--output", output, "--device", "cpu")
    command.words += ["--hours", "0.002", "--every", "0.03", "--dropout", "0"]
    chunks: dict[Path, int] = {}
    for mark in (work / "verifier", parts / "chunk-000000.json", work / "training" / "initial.pt"):
        status, told = command.run(mark.exists)
        assert status == 130, told
        assert "the same command goes on" in told
        assert all(path.stat().st_mtime_ns == then for path, then in chunks.items())
        chunks = {path: path.stat().st_mtime_ns for path in parts.glob("chunk-*")}
    assert chunks
    status, told = command.run()
    assert status == 0, told
    assert "[2/5] encode the text: done already" in told
    points = [line for line in curve.read_text().splitlines()[1:] if "accepted" in line]
    assert points
    card = (output / "README.md").read_text()
    assert card.count("\n| 0.00") == len(points)
    assert str(tmp_path) not in card
    told = "opus --text text.en --output BUNDLE --hours 0.002 --every 0.03 --dropout 0\n"
    assert f"scripts/drafter.sh {told}" in card
    assert load_checkpoint(work / "training" / LAST)["cfg"]["model"].dropout == 0
    assert_what_was_learnt_is_what_the_model_says(work)
    plain, fast = (
        SpeculativeTranslator.from_pretrained(str(output), device="cpu", strategy=strategy)
        for strategy in ("AR", "specdec")
    )
    same, again = ([str(found) for found in t.translate(TEXT[:20])] for t in (plain, fast))
    assert again == same
    assert fast.stats.accepted > 0
    bundle = read_bundle(output)
    assert bundle.drafter is not None
    assert bundle.drafter.network is not None
    assert bundle.drafter.network.architecture["shortlist_common"] > 0
    # All is done, and nothing is done again.
    assert command.run()[1].count("done already") == 5


@pytest.mark.parametrize("kind", ["captions", "m2m_100", "bart", "mbart"])
def test_the_steps_before_training_by_themselves(kind: str, text: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "verifier"
    if kind == "captions":
        captions(bundle)
    else:
        # Random models end no text themselves; BART's begin with one `<s>` more.
        ends = {"forced_eos_token_id": 2} | ({"forced_bos_token_id": 0} if kind == "bart" else {})
        folder, languages = random_folder(tmp_path / kind, kind, **ends), ["-s", "en", "-t", "de"]
        flags = ["bundle", str(folder), "--output", str(bundle)]
        assert convert.main(flags + languages * (kind != "bart")) == 0
    words = tmp_path / "encoded"
    drafting.COMMANDS["encode"]("--bundle", bundle, "--text", text, "--output", words)
    flags = ["--path", bundle / "verifier.safetensors", "--output", tmp_path / "distilled"]
    drafting.COMMANDS["translate"](words, *flags, "--cpu", "--chunk-size", 100)
    assert_what_was_learnt_is_what_the_model_says(tmp_path)


def assert_what_was_learnt_is_what_the_model_says(work: Path) -> None:
    translator = SpeculativeTranslator.from_pretrained(
        str(work / "verifier"), device="cpu", strategy="AR", dtype="int8"
    )
    both = read_words(make_settings({"data": str(work / "verifier")})).dictionaries
    codec = translator.codec
    first, end = codec.num_framing - codec.num_behind, codec.num_behind
    forced = list(codec.first_ids)
    data = DataBin.find(work / "distilled", "train")
    sources, targets = map(data.sentences, data.languages)
    assert len(sources) == len(targets) > 100
    texts = [[both.source.symbols[i] for i in sources[n][first:-end]] for n in range(10)]
    for n, found in enumerate(translator.translate_tokens(texts)):
        *ids, last = targets[n].tolist()
        assert last == Dictionary.eos
        assert ids[: len(forced)] == forced
        said = codec.tokens(ids)  # cut early, as a translation that long repeats itself
        assert said == found.tokens[: len(said)]


def random_folder(folder: Path, model_type: str, **settings: Any) -> Path:
    lines, codes = folders.lines_of(300), ["eng_Latn", "deu_Latn"]
    if model_type == "marian":
        return opus(folder)
    if model_type == "m2m_100":
        folders.nllb_files(folder, lines, codes)
    elif model_type == "mbart":
        folders.spm_files(folder, lines, "MBart50Tokenizer", "bpe")
    else:
        folders.bart_files(folder, lines)
    folders.add_model(folder, model_type, **settings)
    return folder


@pytest.mark.parametrize("model_type", ["marian", "m2m_100", "bart", "mbart"])
def test_a_drafter_of_every_architecture_begins_at_its_encoder(
    model_type: str, tmp_path: Path
) -> None:
    from specdec_plugins.training.initialise import initialise_drafter

    folder = random_folder(tmp_path / model_type, model_type)
    bundle = tmp_path / "bundle"
    assert convert.main(["bundle", str(folder), "--output", str(bundle)]) == 0
    weights, initial = bundle / "verifier.safetensors", tmp_path / "initial.pt"
    import encoder_initial

    words = ("--arch", "block_fast", "--verifier", weights, "--output", initial)
    checkpoint, report = initialise_drafter(encoder_initial.COMMAND.parse(*words))
    assert any("frozen" in line for line in report)
    vars(checkpoint["args"])["block_size"] = 8
    save_checkpoint(checkpoint, initial)
    verifier, network = (
        read_model(path).network(torch.float32, CPU) for path in (weights, initial)
    )
    assert isinstance(verifier, Transformer)
    assert isinstance(network, BlockDrafter)
    assert same_encoder(verifier.encoder, network.encoder)
    flags = encoder_initial.architecture_flags(checkpoint["args"])
    assert ("--swish" in flags) == (model_type == "marian")
    assert ("--encoder-normalize-before" in flags) == (model_type in ("m2m_100", "mbart"))


def test_training_tells_the_head_what_opens_the_models_input(
    training: Training, tmp_path: Path
) -> None:
    """MarianMT begins with padding, of which our `<s>` is a copy; fairseq's models with `</s>`."""
    bundle = tmp_path / "verifier"
    training.args.precision, training.args.cpu = None, True
    for folder, start in ((opus(tmp_path / "opus"), Dictionary.bos), (captions(tmp_path / "c"), 2)):
        assert convert.main(["bundle", str(folder), "--output", str(bundle), "--force"]) == 0
        command = training.command(0.5)
        assert command[command.index("--start-token") + 1] == str(start)
        translator = SpeculativeTranslator.from_pretrained(str(bundle), device="cpu", strategy="AR")
        assert isinstance(translator.decoder, SpeculativeDecoder)
        assert translator.decoder.verifier.special.start == start


@pytest.mark.parametrize(
    ("begun", "given", "has_products", "chosen"),
    [
        (None, None, True, "bf16"),
        (None, None, False, None),
        (None, "fp32", True, "fp32"),
        ("fp32", None, True, "fp32"),
        ("bf16", None, False, "bf16"),
        ("bf16", "bf16", False, "bf16"),
        ("fp16", "fp32", True, UserError),
    ],
)
def test_a_training_keeps_its_precision_and_a_new_one_has_what_the_cpu_has(
    begun: str | None,
    given: str | None,
    has_products: bool,
    chosen: Any,
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafting, "multiplies_bfloat16", lambda: has_products)
    training.args.precision, training.args.cpu = given, True
    if begun is not None:
        common = {name: name == begun for name in ("fp16", "bf16")}
        save_checkpoint({"cfg": {"common": common}, "model": {}}, training.folder / LAST)
    if chosen is UserError:
        refused("was started in fp16; omit --precision fp32, or give another", training._precision)
    else:
        assert training._precision() == chosen


def test_what_a_cpu_multiplies_is_what_its_flags_say() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    assert drafting.multiplies_bfloat16() == bool({"avx512_bf16", "amx_bf16"} & set(flags))


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, bool]]]:
    """Run drafter.sh with commands that only make their outputs; returns which ran, and whether
    they went on.
    """
    ran: list[tuple[str, bool]] = []

    def work(_: object, title: str, command: commands.Command, begun: bool) -> None:
        ran.append((command.title, begun))
        for output in map(Path, command.outputs):
            output.mkdir(exist_ok=True)
            (output / "bundle.json").touch()

    def run(*words: object) -> list[tuple[str, bool]]:
        ran.clear()
        drafter.main(drafter.COMMAND.parse(*words))
        return list(ran)

    monkeypatch.setattr(commands.Runner, "_run", work)
    monkeypatch.setattr(drafter.Plan, "result", str)
    return run


def test_a_finished_drafter_stays_whatever_its_paths_and_machine_are_called(
    text: Path, stubbed: Callable[..., list[tuple[str, bool]]], tmp_path: Path
) -> None:
    bundle, out = captions(tmp_path / "captions"), tmp_path / "out"
    assert len(stubbed(bundle, "--text", text, "--output", out)) == 5
    spelt = ("--text", os.path.relpath(text), "--output", f"{tmp_path}/captions/../out/")
    assert stubbed(f"{bundle}/", *spelt) == []
    machine = ("--device", "cpu", "--precision", "bf16", "--ray", "local", "--num-shards", 2)
    assert stubbed(bundle, *spelt, *machine) == []
    refused(
        r"train the drafter: .*/training was made by .*\(--block-size 8 -> 12\); .* "
        "--redo train-the-drafter",
        *(stubbed, bundle, *spelt, "--block-size", 12),
    )
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["captions", "out", "out.work"]
    further = [("train the drafter", True), ("bundle both", False)]
    assert stubbed(bundle, *spelt, "--hours", 5) == further


def plan(*words: object) -> drafter.Plan:
    return drafter.Plan(drafter.COMMAND.parse(*words))


def test_a_bundle_and_a_checkpoint_are_models_too(text: Path, tmp_path: Path) -> None:
    bundle = captions(tmp_path / "captions")
    flags = ("--text", text, "--output", tmp_path / "out", "-s", "en", "-t", "de")
    found = [plan(model, *flags).commands()[0] for model in (bundle, CAPTIONS)]
    again = tmp_path / "again"
    for command in found:
        words = [*command.words[command.words.index("bundle") : -1], str(again), "--force"]
        assert convert.main(words) == 0
        alone = read_bundle(again)
        assert (alone.drafter, alone.source_lang, alone.target_lang) == (None, "en", "de")
        assert alone.text == read_bundle(bundle).text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"--text": ""}, "empty"),
        ({"--text": "one line\n" * 300}, "has 1 different lines of text; give at least 200"),
        ({"--text": "".join(f"{chr(c)} {chr(c + 1)}\n" for c in range(0x4E00, 0x5000))},
         "does not know .* of its subwords; give text in the model's source language .en."),
        ({"model": "nothing"}, "not a model; give a bundle, a transformers folder"),
        ({"--output": "other"}, "holds something else; give another folder"),
        ({"--output": "captions"}, "is an input as well"),
        ({"--output": "text.en"}, "is an input as well"),
        ({"--from": "nothing"}, "--from .*nothing: not a bundle with a trained drafter; give one"),
        ({"--from": "alone"}, "--from .*alone: not a bundle with a trained drafter; give one"),
        ({"--from": "bundled"}, "--from .*en-de: its target vocabulary differs from .*captions"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(
    change: dict[str, str], sentence: str, text: Path, tmp_path: Path
) -> None:
    captions(tmp_path / "captions")
    captions(tmp_path / "alone", drafter_name=None, drafter=None)
    (tmp_path / "bundled").symlink_to(ROOT / "data" / "models" / "en-de")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    path = tmp_path / "text.en"
    path.write_text(change.get("--text", text.read_text()), encoding="utf-8")
    flags = ["--text", path, "--output", tmp_path / change.get("--output", "out")]
    flags += ["--from", tmp_path / change["--from"]] if "--from" in change else []
    refused(sentence, plan, tmp_path / change.get("model", "captions"), *flags)


def test_an_earlier_drafter_goes_on_to_learn(
    text: Path, tmp_path: Path, training: Training
) -> None:
    bundle = captions(tmp_path / "captions")
    flags = ("--text", text, "--output", tmp_path / "both", "--from", bundle)
    command = plan(bundle, *flags).commands()[3]
    words = command.line[command.line.index("train") + 1 :]
    args = drafting.COMMANDS["train"].parse(*words)
    assert vars(args)["from"] == bundle
    assert args.told.endswith("--hours 4 --from captions")
    captions(training.args.bundle)
    vars(training.args).update({"from": bundle, "cpu": True, "precision": None})
    words = training.command(1.0)
    assert words[words.index("--from") + 1] == str(bundle)


def test_dropout_is_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model", "--text", "text.en", "--output", "out", "--dropout")
    assert drafter.COMMAND.parse(*words, "0").dropout == 0
    with pytest.raises(SystemExit):
        drafter.COMMAND.parse(*words, "1")
    assert "expected a number of 0 or more and less than 1, not '1'" in capsys.readouterr().err


def test_languages_must_be_chosen(text: Path, tmp_path: Path) -> None:
    folder, flags = random_folder(tmp_path / "nllb", "m2m_100"), ("--text", text, "--output", "o")
    refused("several source languages; choose one", plan, folder, *flags)
    chosen = plan(folder, *flags, "-s", "en", "-t", "de").commands()[0]
    assert re.search("--source-lang en --target-lang de", str(chosen))


def test_what_is_measured_is_the_mean_of_the_last_updates(training: Training) -> None:
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.w")
    first, last, mean = ({n: torch.full((2,), x) for n in names} for x in (1.0, 2.0, 3.0))
    save_checkpoint({"model": first}, training.folder / "initial.pt")
    emas: dict[str, Any] = {"ema_fp32_params": mean}
    whole = training._whole({"model": last, "cfg": {}, "extra_state": emas})["model"]
    assert {name: tensor[0].item() for name, tensor in whole.items()} == {
        "encoder.embed_tokens.weight": 1.0,  # frozen
        "decoder.embed_tokens.weight": 1.0,  # the same table
        "decoder.w": 3.0,
    }
    begun_before = training._whole({"model": last, "cfg": {}, "extra_state": {}})["model"]
    assert begun_before["decoder.w"][0] == 2.0


def test_it_is_over_once_its_hours_are(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    training.hours, training.args.cpu = 0.42692, True  # four digits of the hours are less
    done = {"previous_training_time": training.hours * 3600}
    last = {"extra_state": done, "optimizer_history": [{"num_updates": 1}]}
    monkeypatch.setattr(drafting, "load_checkpoint", lambda path: last)
    monkeypatch.setattr(drafting, "save_checkpoint", lambda whole, path: path.write_bytes(b""))
    monkeypatch.setattr(drafting, "measure", lambda *given: {"accepted": 1.0})
    monkeypatch.setattr(Training, "_whole", lambda self, last: {})
    assert not training.is_over
    training.measure()
    assert training.is_over


@pytest.mark.parametrize(
    ("accepted", "is_over"),
    [
        ([], False),
        ([1.0, 2.0, 2.0, 2.005], False),
        ([1.0, 2.0, 2.0, 2.005, 1.9], True),  # three behind the best
        ([1.0, 2.0, 2.0, 2.1, 2.0], False),
    ],
)
def test_it_ends_where_more_training_brings_no_more(
    accepted: list[float], is_over: bool, training: Training
) -> None:
    assert (training.hours, training.every, training.num_sentences) == (1.75, 0.2, 8)
    for n, value in enumerate(accepted):
        training.curve.add({"hours": 0.2 * (n + 1), "accepted": value})
    assert training.is_over == is_over
    assert Training(training.args).curve.entries == training.curve.entries


@pytest.mark.parametrize(
    ("done", "left", "stop", "status"),
    [
        (None, None, 0.2, None),
        (0.1, None, 0.2, None),
        (0.1, 0.5, 0.2, None),
        (0.1, 0.05, 0.15, UNFINISHED),  # hours of this call; the checkpoint is not measured
        (0.1, -0.05, None, UNFINISHED),
        (0.2, None, None, None),  # killed before it was measured
    ],
)
def test_a_piece_ends_when_the_time_of_the_call_is_up(
    done: float | None,
    left: float | None,
    stop: float | None,
    status: int | None,
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if done is not None:
        state = {"model": {}, "extra_state": {"previous_training_time": 3600 * done}}
        save_checkpoint(state, training.folder / LAST)
    if left is not None:
        training.args.until = time.time() + 3600 * left
    stops = list[float]()
    monkeypatch.setattr(training, "_train", lambda stop, *_: stops.append(stop))
    if status is None:
        training.piece()
    else:
        with pytest.raises(SystemExit) as error:
            training.piece()
        assert error.value.code == status
    assert stops == ([] if stop is None else [pytest.approx(stop, abs=0.001)])


def test_pieces_are_long_enough_to_be_worth_their_start(training: Training) -> None:
    for hours, minutes in ((0.03, 2), (1, 6), (9, 30)):
        training.args.hours = hours
        assert 60 * Training(training.args).every == pytest.approx(minutes)


def test_a_drafter_that_does_not_pay_is_told_and_bundled_but_not_used(
    training: Training, text: Path, tmp_path: Path
) -> None:
    model, out = captions(tmp_path / "verifier"), tmp_path / "bundle"
    made = plan(model, "--text", text, "--output", out)
    made.training = training.folder
    vars(training.args).update({"told": "drafter.sh", "text": "text.en", "cpu": True})
    words = ["--bundle", model, "--training", training.folder, "--output", out]
    shutil.copyfile(CAPTIONS / "drafter.pt", training.folder / drafting.BEST)
    point = {"hours": 0.5, "updates": 9, "same": 1.0}
    for accepted, speedup, slow in ((1.2, 0.4, True), (1.1, 9.0, True), (3, 2.5, False)):
        training.curve.add(point | {"accepted": accepted, "speedup": speedup})
        (training.folder / drafting.CARD).write_text(training.card())
        with pytest.raises(SystemExit) as ended:
            drafting.COMMANDS["bundle"](*words)
        assert ended.value.code == 0
        assert ("the drafter does not pay: decoding is 0.4 times as fast" in made.result()) == slow
        assert ("it decodes without it by default" in (out / "README.md").read_text()) == slow
        settings = make_settings({"data": str(out)})
        assert settings.strategy == ("AR" if slow else "specdec")
        for wish in ({"strategy": "specdec"}, {"block_size": 3}, {"drafter": "block"}):
            assert make_settings({"data": str(out), **wish}).strategy == "specdec"
        (said,) = SpeculativeTranslator.from_pretrained(str(out), device="cpu").translate(TEXT[:1])
        assert said
    assert "| 0.5 | 9 | 3 | 2.5 | 1 of 1 |" in training.card()
    assert "the bundle is " in made.result()
    assert "2.5 times as fast with the drafter as without it" in made.result()


def test_accepted_tokens_are_those_of_all_held_out_lines_and_a_few_of_them_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, drafted = captions(tmp_path / "captions"), CAPTIONS / "drafter.pt"
    fast = SpeculativeTranslator.from_pretrained(
        str(bundle), device="cpu", drafter="block", drafter_checkpoint=str(drafted)
    )
    fast.translate(TEXT[:20])
    stats = fast.stats
    monkeypatch.setattr(report, "TIMED", 3)
    found = report.measure(bundle, drafted, TEXT[:20], "cpu")
    assert found["accepted"] == round((stats.emitted - stats.eos) / stats.rounds, 3)
    assert found["accepted"] != report.measure(bundle, drafted, TEXT[:3], "cpu")["accepted"]
    assert found["same"] == 1
