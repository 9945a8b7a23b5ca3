"""specdec drafter: a drafter for whatever model, stopped wherever, and what is refused."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdec_plugins.app import convert, drafter, gain
from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.loading import read_words
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.corpus import steps
from specdec_plugins.corpus.resume import Log, write_json
from specdec_plugins.corpus.teacher import DataBin
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.networks import BlockDrafter, Transformer, best_set
from specdec_plugins.decoding.networks.transformer import same_encoder
from specdec_plugins.errors import INTERRUPTED
from specdec_plugins.formats.bundle import read_bundle
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import read_model
from specdec_plugins.training import drafter as loop
from specdec_plugins.training.networks import checkpoint_of, new_drafter
from tests.bundles import BUNDLED, CAPTIONS, ROOT, captions
from tests.formats.pretrained.toys import small_model
from tests.programs import SPECDEC, specdec, talking_to
from tests.refusals import refused
from tests.warm_python import warm_python

TEXT = (ROOT / "data" / "sample" / "train.en").read_text(encoding="utf-8").splitlines()[:300]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.en"
    path.write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    return path


def until(mark: Path, *words: object) -> str:
    """What the command says that ctrl-C ends, as at a terminal, once that file is there."""
    program = (*SPECDEC, "drafter", *words)
    with talking_to(*program, process_group=0, PYTHON=warm_python()) as (process, _, _):
        while process.poll() is None and not mark.exists():
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == INTERRUPTED, told
    return told.decode()


@pytest.mark.integration
def test_stopped_where_it_takes_long_it_goes_on_and_decodes_the_same_words(
    text: Path, tmp_path: Path
) -> None:
    model, output = small_model(tmp_path / "opus", "marian"), tmp_path / "out"
    work = tmp_path / "out.work"
    parts, curve = work / "distilled.parts", work / "training" / "curve.jsonl"
    words = [model, "--text", text, "--output", output, "--device", "cpu", "--hours", "0.001"]
    words += ["--every", "0.03", "--dropout", "0"]
    assert "the same command goes on" in until(parts / "chunk-000000.json", *words)
    made = [*parts.glob("chunk-*"), *(work / "data").iterdir()]
    before = [path.stat().st_mtime_ns for path in made]
    assert "the same command goes on" in until(curve, *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python())
        specdec("drafter", *words, cwd=tmp_path)
    assert [path.stat().st_mtime_ns for path in made] == before
    points = [line for line in curve.read_text().splitlines()[1:] if "accepted" in line]
    assert points
    card = (output / "README.md").read_text()
    assert card.count("\n| 0.00") == len(points)
    assert str(tmp_path) not in card
    told = "opus --text text.en --output BUNDLE --hours 0.001 --every 0.03 --dropout 0\n"
    assert f"specdec drafter {told}" in card
    assert_what_was_learnt_is_what_the_model_says(work)
    plain, fast = (
        SpeculativeTranslator.from_pretrained(str(output), device="cpu", strategy=strategy, batch=1)
        for strategy in ("AR", "specdec")
    )
    one, other = ([str(found) for found in t.translate(TEXT[:20])] for t in (plain, fast))
    assert one == other
    assert fast.stats.accepted > 0
    bundle = read_bundle(output)
    assert bundle.drafter is not None
    assert bundle.drafter.network is not None
    assert bundle.drafter.network.architecture["shortlist_common"] > 0


@pytest.mark.parametrize("kind", ["captions", "nllb", "bart", "mbart50"])
def test_the_steps_before_training_by_themselves(kind: str, text: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "verifier"
    if kind == "captions":
        captions(bundle)
    else:
        # Random models end no text themselves; BART's begin with one `<s>` more.
        ends = {"forced_eos_token_id": 2} | ({"forced_bos_token_id": 0} if kind == "bart" else {})
        folder, languages = small_model(tmp_path / kind, kind, **ends), ["-s", "en", "-t", "de"]
        flags = [str(folder), "--output", str(bundle)]
        assert convert.BUNDLE.run(flags + languages * (kind != "bart")) == 0
    made = plan(bundle, "--text", text, "--output", tmp_path / "out", "--device", "cpu")
    made._convert()
    drafter.encode(made.verifier, text, made.data)
    made.translate()
    assert_what_was_learnt_is_what_the_model_says(made.work)


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


@pytest.mark.parametrize("name", ["marian", "nllb", "bart", "mbart50", "madlad"])
def test_a_drafter_of_every_architecture_begins_at_its_encoder(
    name: str, small: Callable[[str], Path], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    assert convert.BUNDLE.run([str(small(name)), "--output", str(bundle)]) == 0
    model, path = read_model(bundle / "verifier.safetensors"), tmp_path / "initial.pt"
    save_checkpoint(checkpoint_of(new_drafter(model, 8, seed=1), {}, model), path)
    verifier, network = (one.network(torch.float32, CPU) for one in (model, read_model(path)))
    assert isinstance(verifier, Transformer)
    assert isinstance(network, BlockDrafter)
    assert same_encoder(verifier.encoder, network.encoder)
    last, theirs = network.decoder.layers[1], verifier.decoder.layers[-1]
    is_copied = torch.equal(last.up.weight, theirs.up.weight)
    assert is_copied == (name in ("marian", "bart"))  # the others are pre-norm
    assert network.config.activation == verifier.config.activation
    network.adopt(verifier)
    assert network.encoder is verifier.encoder
    assert network.decoder.tokens.weight is verifier.decoder.output.weight
    assert network.config.sequential_head  # also with a projection of its own


def test_training_tells_the_head_what_opens_the_models_input(
    text: Path, small: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MarianMT begins with padding, of which our `<s>` is a copy; fairseq's models with `</s>`."""
    plans: list[loop.Plan] = []
    # With several GPUs, other processes get what measures by pickle.
    monkeypatch.setattr(loop, "train", lambda plan, how: plans.append(plan) or pickle.dumps(how))
    monkeypatch.setattr(drafter.Plan, "card", lambda *_: "")
    for folder, start in ((small("marian"), Dictionary.bos), (captions(tmp_path / "c"), 2)):
        made = plan(folder, "--text", text, "--output", tmp_path / f"out-{start}", "--hours", 2)
        made._convert()
        for folder in (made.data, made.distilled, made.training):
            folder.mkdir()
        (made.data / "held-out.txt").write_text("a\n")
        counts = {"sentences": 9, "left_out": 1, "seconds": 900}
        write_json(made.distilled / "distilled.json", {"settings": {}, "counts": counts})
        made._train()
        assert plans[-1].start_token == start
        assert (plans[-1].hours, plans[-1].every) == (1.75, 0.2)
        translator = SpeculativeTranslator.from_pretrained(
            str(made.verifier), device="cpu", strategy="AR"
        )
        assert isinstance(translator.decoder, SpeculativeDecoder)
        assert translator.decoder.verifier.special.start == start
    write_json(made.distilled / "distilled.json", {"counts": {**counts, "left_out": 9}})
    refused("none of 9 translations ended", made._train)


def test_intervals_are_long_enough_to_be_worth_their_measurement() -> None:
    for hours, minutes in ((0.03, 2), (1, 6), (9, 30)):
        assert drafter.interval(None, hours) == pytest.approx(minutes)
    assert drafter.interval(0.5, 9) == 0.5


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, bool]]]:
    """Run it with commands that only make their outputs; returns which ran, and whether
    they went on.
    """
    ran: list[tuple[str, bool]] = []

    def work(_: object, command: steps.Command, begun: bool) -> None:
        ran.append((command.title, begun))
        for output in map(Path, command.outputs):
            output.mkdir(exist_ok=True)
            (output / "bundle.json").touch()

    def run(*words: object) -> list[tuple[str, bool]]:
        ran.clear()
        drafter.main(drafter.COMMAND.parse(*words))
        return list(ran)

    monkeypatch.setattr(steps.Runner, "_work", work)
    monkeypatch.setattr(drafter.Plan, "result", str)
    return run


def test_a_finished_drafter_stays_whatever_its_paths_and_machine_are_called(
    text: Path, stubbed: Callable[..., list[tuple[str, bool]]], tmp_path: Path
) -> None:
    bundle, out = captions(tmp_path / "captions"), tmp_path / "out"
    assert len(stubbed(bundle, "--text", text, "--output", out)) == 5
    spelt = ("--text", os.path.relpath(text), "--output", f"{tmp_path}/captions/../out/")
    assert stubbed(f"{bundle}/", *spelt) == []
    machine = ("--device", "cpu", "--precision", "bf16", "--ray", "local", "--ray-workers", 3)
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
        words = [*command.words[1:], "--output", str(again), "--force"]
        assert convert.BUNDLE.run(words) == 0
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
        ({"--from": "bundled"}, "--from .*small: its target vocabulary differs from .*captions"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(
    change: dict[str, str], sentence: str, text: Path, tmp_path: Path
) -> None:
    captions(tmp_path / "captions")
    captions(tmp_path / "alone", drafter_name=None, drafter=None)
    (tmp_path / "bundled").symlink_to(BUNDLED)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    path = tmp_path / "text.en"
    path.write_text(change.get("--text", text.read_text()), encoding="utf-8")
    flags = ["--text", path, "--output", tmp_path / change.get("--output", "out")]
    flags += ["--from", tmp_path / change["--from"]] if "--from" in change else []
    refused(sentence, plan, tmp_path / change.get("model", "captions"), *flags)


def test_an_earlier_drafter_is_told(text: Path, tmp_path: Path) -> None:
    bundle = captions(tmp_path / "captions")
    flags = ("--text", text, "--output", tmp_path / "both", "--from", bundle)
    made = plan(bundle, *flags)
    assert made._told().endswith("--hours 4 --from captions")
    assert made.commands()[3].inputs == [str(bundle)]


def test_languages_must_be_chosen(text: Path, small: Callable[[str], Path]) -> None:
    folder, flags = small("nllb"), ("--text", text, "--output", "o")
    refused("several target languages; choose one", plan, folder, *flags)
    chosen = plan(folder, *flags, "-s", "en", "-t", "de").commands()[0]
    assert re.search("--source-lang en --target-lang de", str(chosen))


def test_a_drafter_that_does_not_pay_is_told_and_bundled_but_not_used(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter, "most_rows", lambda *given: {"cpu": 4}[given[-1]])
    model, out = captions(tmp_path / "verifier"), tmp_path / "bundle"
    made = plan(model, "--text", text, "--output", out, "--device", "cpu")
    made._convert()
    drafter.encode(made.verifier, text, made.data)
    made.training.mkdir()
    shutil.copyfile(CAPTIONS / "drafter.pt", made.training / loop.BEST)
    curve = Log(made.training / loop.CURVE, {})
    point = {"hours": 0.5, "updates": 9, "same": 1.0}
    for accepted, speedup, slow in ((1.2, 0.4, True), (1.1, 9.0, True), (3, 2.5, False)):
        curve.add(point | {"accepted": accepted, "speedup": speedup})
        (made.training / drafter.CARD).write_text(made.card(8, 1.0, ["a"]))
        made._bundle()
        assert ("the drafter does not pay: decoding is 0.4 times as fast" in made.result()) == slow
        assert ("it decodes without it by default" in (out / "README.md").read_text()) == slow
        settings = make_settings({"data": str(out)})
        assert settings.strategy == ("AR" if slow else "specdec")
        wish = {"strategy": "specdec", "device": "cpu"}
        under_load = make_settings({"data": str(out), **wish})
        assert under_load.schedule == "few_rows"
        assert under_load.schedule_options == {"rows": 1 if slow else 4}
        assert under_load.batch == (16 if best_set() else 1)
        for asked in ({"block_size": 3}, {"schedule": "constant"}):
            always = make_settings({"data": str(out), **wish, **asked})
            assert (always.schedule, always.batch) == ("constant", 1)
        for other in ({"dtype": "float64"}, {"kernels": "torch"}, {"beta": 3}):  # or texts may vary
            assert make_settings({"data": str(out), **wish, **other}).batch == 1
        for asked in ({"strategy": "specdec"}, {"block_size": 3}, {"drafter": "block"}):
            assert make_settings({"data": str(out), **asked}).strategy == "specdec"
        (said,) = SpeculativeTranslator.from_pretrained(str(out), device="cpu").translate(TEXT[:1])
        assert said
    assert "| 0.5 | 9 | 3 | 2.5 | 1 of 1 |" in made.card(8, 1.0, ["a"])
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
    monkeypatch.setattr(gain, "TIMED", 3)
    found = gain.measure(bundle, drafted, TEXT[:20], "cpu")
    assert found["accepted"] == round((stats.emitted - stats.eos) / stats.rounds, 3)
    assert found["accepted"] != gain.measure(bundle, drafted, TEXT[:3], "cpu")["accepted"]
    assert found["same"] == 1


def test_rows_that_pay_are_counted_on_the_device_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[str | None] = []

    def alternately(*both: object) -> tuple[float, float]:
        devices.extend(it.settings.device for it in both if isinstance(it, SpeculativeTranslator))
        return 1.0, 1.0

    monkeypatch.setattr(gain, "_alternately", alternately)
    bundle = captions(tmp_path / "captions")
    assert gain.most_rows(bundle, CAPTIONS / "drafter.pt", TEXT[:20], "cpu") == 1
    assert devices == ["cpu", "cpu"]
