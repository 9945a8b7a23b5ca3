"""Distillation: nothing lost, nothing shifted, resumable, on a Ray cluster as well."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engines.fairseq import FairseqSearch
from specdec_plugins.app.settings import Settings
from specdec_plugins.corpus import distill, teacher
from specdec_plugins.corpus.teacher import ChunkTranslator, DataBin, Search, Teacher
from tests.corpus.conftest import Verifier, distil
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

MARK = "DISTILL_TEST_MARK"


def sentences(folder: Path, language: str, split: str = "train") -> list[list[int]]:
    from fairseq.data import indexed_dataset

    stem = str(folder / f"{split}.en-de.{language}")
    dataset = indexed_dataset.make_dataset(stem, impl="mmap")
    return [dataset[i].tolist() for i in range(len(dataset))]


@pytest.fixture(scope="module")
def distilled(verifier: Verifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("distilled") / "kd"
    distil(verifier, output)
    return output


def test_each_sentence_has_its_own_translation(verifier: Verifier, distilled: Path) -> None:
    """Against one sentence at a time."""
    data = DataBin.find(verifier.data, "train")
    search = Search(2, 1.0, max_len_a=0.0, max_len_b=8, dtype="float32")
    model = Teacher(data, verifier.checkpoint, search, torch.device("cpu"))
    found, original = sentences(distilled, "de"), sentences(verifier.data, "de")
    assert len(found) == verifier.num_sentences
    for index, tokens in enumerate(found):
        if index in verifier.too_long:
            assert tokens == original[index]
            continue
        [(same, line)] = model.translate([index], max_tokens=1)
        assert same == index
        expected = model._dictionary.encode_line(line)
        assert tokens == expected
    assert len({tuple(tokens) for tokens in found}) > 5  # the model does distinguish sources


def test_in_8_bits_a_sentence_is_translated_as_alone(verifier: Verifier, tmp_path: Path) -> None:
    distil(verifier, tmp_path / "kd", "--dtype", "int8")
    data = DataBin.find(verifier.data, "train")
    search = Search(2, 1.0, max_len_a=0.0, max_len_b=8, dtype="int8")
    model = Teacher(data, verifier.checkpoint, search, torch.device("cpu"))
    found = sentences(tmp_path / "kd", "de")
    for index in set(range(len(found))) - set(verifier.too_long):
        [(_, line)] = model.translate([index], max_tokens=1)
        assert found[index] == model._dictionary.encode_line(line)


def test_translations_are_those_of_fairseqs_search(verifier: Verifier, distilled: Path) -> None:
    files = {"data": str(verifier.data), "verifier": str(verifier.checkpoint)}
    languages = {"source_lang": "en", "target_lang": "de"}
    settings = Settings(**files, **languages, strategy="AR", device="cpu")
    search = FairseqSearch(settings, beam=2, max_len=9, min_len=1)
    found, sources = sentences(distilled, "de"), sentences(verifier.data, "en")
    read = [i for i in range(len(found)) if i not in verifier.too_long]
    assert [found[i] for i in read] == search.search([sources[i] for i in read])


def test_all_else_is_the_original(verifier: Verifier, distilled: Path) -> None:
    for path in verifier.data.iterdir():
        if path.name.startswith("train.en-de.de"):
            assert (distilled / path.name).read_bytes() != path.read_bytes()
        else:
            assert (distilled / path.name).read_bytes() == path.read_bytes()
    record = json.loads((distilled / "distilled.json").read_text())
    counts = record["counts"]
    assert counts.pop("seconds") > 0
    assert counts == {"sentences": 23, "originals": 2, "left_out": 0}


class KilledOnce(ChunkTranslator):
    """Dies as the kernel's killer would have it, in the middle of the third chunk."""

    def translate(self, chunk: int, span: range) -> tuple[int, dict[str, Any]]:
        mark = Path(os.environ[MARK])
        if chunk == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().translate(chunk, span)


def chunks(output: Path) -> dict[str, Any]:
    """What each holds, but for the time it took."""
    parts = output.with_name(f"{output.name}.parts")
    found = {path.name: json.loads(path.read_text()) for path in parts.glob("chunk-*.json")}
    return {name: {**chunk, "seconds": None} for name, chunk in found.items()}


@pytest.mark.integration
def test_a_killed_worker_loses_nothing(
    verifier: Verifier, distilled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "killed"
    monkeypatch.setenv(MARK, str(mark))
    monkeypatch.setattr(teacher, "ChunkTranslator", KilledOnce)
    distil(verifier, tmp_path / "cluster", "--ray", "local", "--ray-workers", 2)
    assert mark.exists()
    assert len(chunks(tmp_path / "cluster")) == 5
    assert chunks(tmp_path / "cluster") == chunks(distilled)
    for path in distilled.iterdir():
        if path.suffix in (".bin", ".idx"):
            assert (tmp_path / "cluster" / path.name).read_bytes() == path.read_bytes()


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_several_processes_do_what_one_does(
    verifier: Verifier, distilled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distil(verifier, tmp_path / "kd", "--processes", 2)
    assert chunks(tmp_path / "kd") == chunks(distilled)
    monkeypatch.setattr(teacher, "_translate", killed)
    message = "one of --processes was killed, .* with fewer of them"
    refused(message, distil, verifier, tmp_path / "other", "--processes", 2)


def test_without_ray_one_process_does_it(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "has_ray", lambda: False)
    distil(verifier, tmp_path / "kd", "--ray", "local")
    assert len(chunks(tmp_path / "kd")) == 5


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("local", "--ray local: no cluster could be started here.*no room.*; omit --ray"),
        ("ray://127.0.0.1:1", "--ray ray://127.0.0.1:1: no cluster answers.*refused.*; start one"),
        ("127.0.0.1:OPEN", "no cluster answers there.*no room.*; start one with"),
    ],
)
def test_a_cluster_that_is_not_there(
    verifier: Verifier, address: str, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray")

    def fail(**_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(ray, "init", fail)
    with socket.create_server(("127.0.0.1", 0)) as there:
        address = address.replace("OPEN", str(there.getsockname()[1]))
        refused(sentence, distil, verifier, tmp_path / "kd", "--ray", address)


def test_hours_that_are_over_end_it_with_what_is_there(
    verifier: Verifier, distilled: Path, tmp_path: Path
) -> None:
    distil(verifier, tmp_path / "kd", "--hours", 1e-9)
    found = sentences(tmp_path / "kd", "de")
    assert found == sentences(distilled, "de")[: len(found)]
    assert len(sentences(tmp_path / "kd", "en")) == len(found) == 5
    distil(verifier, tmp_path / "kd", "--hours", 1)  # more of them go on
    assert sentences(tmp_path / "kd", "de") == sentences(distilled, "de")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a teacher is asked to translate, in order."""
    translate, found = Teacher.translate, list[int]()
    monkeypatch.setattr(
        Teacher,
        "translate",
        lambda self, indices, limit: found.extend(indices) or translate(self, indices, limit),
    )
    return found


def test_what_is_translated_first_is_from_everywhere(
    verifier: Verifier, distilled: Path, tmp_path: Path, asked: list[int]
) -> None:
    """A training set has one corpus behind the other; hours may end anywhere."""
    distil(verifier, tmp_path / "kd", "--chunk-size", 1)
    third = verifier.num_sentences // 3
    for number in range(3):
        part = range(number * third, (number + 1) * third)
        assert len(set(asked[:third]) & set(part)) >= third // 3
    assert sorted(asked) == sorted(set(range(verifier.num_sentences)) - set(verifier.too_long))
    assert sentences(tmp_path / "kd", "de") == sentences(distilled, "de")


def test_a_sentence_that_comes_again_is_translated_once(
    verifier: Verifier, distilled: Path, tmp_path: Path, asked: list[int]
) -> None:
    """A mix of corpora holds some sentences several times."""
    once, folder = DataBin.find(verifier.data, "train"), tmp_path / "data"
    shutil.copytree(verifier.data, folder)
    with once.writing(folder) as write:
        for ids in once.sentences("en"):
            for _ in range(3):
                write(ids, "w1 w2")
    distil(replace(verifier, data=folder), tmp_path / "kd", "--chunk-size", 15)
    wanted = set(range(verifier.num_sentences)) - set(verifier.too_long)
    assert sorted(asked) == sorted(3 * index for index in wanted)
    found, expected = sentences(tmp_path / "kd", "de"), sentences(distilled, "de")
    assert all(found[3 * i : 3 * i + 3] == [expected[i]] * 3 for i in wanted)


class Stopped(Exception):
    pass


def test_a_stop_loses_one_chunk_and_repeats_none(
    verifier: Verifier, distilled: Path, tmp_path: Path, asked: list[int]
) -> None:
    translate, done = Teacher.translate, set[int]()

    def stop_in_the_third(
        self: Teacher, indices: Sequence[int], max_tokens: int
    ) -> Iterator[list[tuple[int, str]]]:
        if len(asked) <= 8:
            yield from translate(self, indices, max_tokens)
            return
        done.update(asked)
        yield next(translate(self, indices, max_tokens))
        raise Stopped

    output = tmp_path / "kd"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teacher, "translate", stop_in_the_third)
        with pytest.raises(Stopped):
            distil(verifier, output)
    assert len(chunks(output)) == 2
    assert not output.exists()
    asked.clear()
    distil(verifier, output)
    assert len(done) > 8
    assert not done & set(asked)
    assert sentences(output, "de") == sentences(distilled, "de")


def test_other_settings_are_refused(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "kd"

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Teacher, "translate", stop)
        with pytest.raises(Stopped):
            distil(verifier, output)
    message = "started with a different beam; give another --output"
    refused(message, distil, verifier, output, "--beam", 1)
    distil(verifier, output)
    refused("exists with other data or settings", distil, verifier, output, "--lenpen", 0.5)
    distil(verifier, output)  # the same again: done already


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--subset", "train9"], r"expected train9\.SRC-TGT"),
        (["--path", "none.pt"], "none.pt: no such checkpoint"),
        (["--path", __file__], "test_distill.py: damaged"),
        (["--fp16"], "--fp16 needs a GPU"),
    ],
)
def test_impossible_settings_leave_nothing_behind(
    verifier: Verifier, tmp_path: Path, flags: list[object], sentence: str
) -> None:
    refused(sentence, distil, verifier, tmp_path / "kd", *flags)
    refused("is an input as well", distil, verifier, verifier.data)
    assert not list(tmp_path.iterdir())


def test_data_of_the_other_direction_is_refused(verifier: Verifier, tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    for path in verifier.data.iterdir():
        shutil.copyfile(path, data / path.name.replace("en-de", "de-en"))
    reverse = replace(verifier, data=data)
    refused("was trained from en to de", distil, reverse, tmp_path / "kd")
    assert not (tmp_path / "kd.parts").exists()
