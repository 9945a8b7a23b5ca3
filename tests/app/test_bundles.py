"""A bundle gives what the user did not, and decodes as its checkpoints do."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from specdec_plugins.app import loading
from specdec_plugins.app.defaults import make_settings, settings_from_files
from specdec_plugins.app.loading import origin
from specdec_plugins.app.main import inference as main
from specdec_plugins.app.settings import DRAFTER, VERIFIER, Settings
from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.corpus.resume import first_difference
from specdec_plugins.decoding.networks import KERNELS, with_fast_products
from specdec_plugins.errors import UserError
from specdec_plugins.formats.bundle import CODES
from specdec_plugins.formats.models import read_model
from specdec_plugins.serving import translate
from specdec_plugins.serving.model import served_settings
from tests.bundles import BUNDLED, CAPTIONS, LINES, ROOT, captions
from tests.programs import run
from tests.refusals import refused

RAW_TEXT = {"tokenizer": "moses", "bpe": "subword_nmt"}
SAMPLES = (ROOT / "data" / "samples" / "en-de.tsv").read_text().splitlines()
SENTENCES = [line.split("\t")[0] for line in SAMPLES[1::8]]
DEFAULTS = {"beta": 3, "tau": 1.5, "block_size": 7, "max_len_b": 90}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bare: no defaults of decoding."""
    return captions(tmp_path_factory.mktemp("models") / "captions")


@pytest.fixture(scope="module")
def relaxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captions(tmp_path_factory.mktemp("models") / "relaxed", defaults=DEFAULTS)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """Of the checkpoints, one token at a time."""
    translator = SpeculativeTranslator.from_pretrained(str(CAPTIONS), strategy="AR", device="cpu")
    return [t.text for t in translator.translate(LINES)]


def test_a_block_scores_to_the_last_bit_what_a_step_scores() -> None:
    """On real text, in float32 and 8 bits, and whatever the drafter computes in."""

    def decoded(**settings: Any) -> list[tuple[str, float | None]]:
        translator = SpeculativeTranslator.from_pretrained(device="cpu", **settings)
        return [(t.text, t.score) for t in translator.translate(SENTENCES)]

    for dtype in ("float32", "int8"):
        plain = decoded(strategy="AR", dtype=dtype)
        assert decoded(dtype=dtype, batch=7) == plain
        assert decoded(dtype=dtype, drafter_dtype="int8", block_size=4) == plain


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, [False, True]),
        ({"rule": "speculative_sampling"}, [False, True]),
        ({"rule": "top_beta"}, [False, True]),  # beta 1
        ({"beta": 3, "tau": 1.0}, [False, False]),  # the draft decides the text
        ({"drafter_dtype": "float32"}, [False, False]),
        ({"kernels": "torch"}, [False, False]),
        ({"strategy": "drafter"}, [False, False]),  # nobody checks it
        ({"dtype": "int8"}, [True, True]),
        ({"dtype": "float64"}, [False, False]),
    ],
)
def test_what_is_checked_is_drafted_in_8_bits(
    given: dict[str, Any], wanted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def noted(network: Any, int8: bool, *more: Any) -> Any:
        found.append(int8)
        return with_fast_products(network, int8, *more)

    monkeypatch.setattr(loading, "with_fast_products", noted)
    SpeculativeTranslator.from_pretrained(str(BUNDLED), device="cpu", **given)
    assert found == wanted


def test_the_bundle_fills_in(relaxed: Path) -> None:
    settings = make_settings({"data": str(relaxed), "batch": 4})
    assert (settings.source_lang, settings.target_lang) == ("en", "de")
    assert settings.verifier == str(relaxed / "verifier.safetensors")
    assert settings.drafter_checkpoint == str(relaxed / "drafter.safetensors")
    assert (settings.tokenizer, settings.bpe) == ("moses", "subword_nmt")
    assert settings.bpe_codes == str(relaxed / "bpe.codes")
    assert (settings.beta, settings.tau, settings.block_size) == (3, 1.5, 7)
    assert (settings.usual_len, settings.is_bounded) == ((0.0, 90), False)
    assert settings.batch == 4


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"beta": 1, "tau": 0.0}, {"beta": 1, "tau": 0.0, "block_size": 7}),
        ({"beta": 1}, {"beta": 1, "tau": 0.0}),
        ({"tau": 0.5}, {"beta": 3, "tau": 0.5}),
        ({"rule": "exact"}, {"beta": 1, "tau": 0.0, "rule_name": "exact"}),
        ({"strategy": "AR"}, {"beta": 1, "block_size": None, "max_lens": (0.0, 90)}),
        ({"max_len_a": 2.0}, {"max_lens": (2.0, 90), "is_bounded": True}),
        ({"drafter": "lookup"}, {"drafter_checkpoint": None, "verifier": "BUNDLE"}),
        ({"drafter_checkpoint": "d.pt"}, {"drafter_checkpoint": "d.pt", "drafter": "block"}),
        ({"verifier": "v.pt", "source_lang": None}, {"verifier": "v.pt", "source_lang": "en"}),
        ({"bpe": None}, {"bpe": None, "bpe_codes": None, "tokenizer": "moses"}),
        ({"tokenizer": None}, {"tokenizer": None, "bpe": "subword_nmt"}),
        ({"tokenizer": None, "bpe": None}, {"raw_text": False, "lowercase": False}),
        ({"remove_bpe": "@@ "}, {"raw_text": False}),
    ],
)
def test_flags_go_before_it(given: dict[str, Any], wanted: dict[str, Any], relaxed: Path) -> None:
    settings = make_settings({"data": str(relaxed), **given})
    for name, value in wanted.items():
        value = str(relaxed / "verifier.safetensors") if value == "BUNDLE" else value
        assert getattr(settings, name) == value, name


def same_origin(bundle: Path, **given: Any) -> bool:
    """Whether a run with these settings may go on with an output of the bundle's."""
    return origin(make_settings({"data": str(bundle)})) == origin(make_settings(given))


def test_how_a_model_is_named_is_no_part_of_an_outputs_origin(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (link := tmp_path / "link").symlink_to(bundle)
    renamed = shutil.copytree(bundle, tmp_path / "copy") / "other.codes"
    shutil.move(renamed.parent / CODES, renamed)
    monkeypatch.chdir(tmp_path)
    for name in (f"{bundle}/", os.path.relpath(bundle), str(link)):
        assert same_origin(bundle, data=name)
    same = {"rule": "exact", "source_lang": "en", "batch": 3, "device": "cpu"}
    assert same_origin(bundle, data="copy", bpe="subword_nmt", bpe_codes=str(renamed), **same)
    assert not same_origin(bundle, data=str(bundle), rule="top_beta")


@pytest.mark.parametrize(
    ("file", "role"),
    [
        ("verifier.safetensors", "verifier"),
        ("drafter.safetensors", "drafter"),
        ("bpe.codes", "BPE codes"),
        ("dict.de.txt", "dictionaries"),
    ],
)
def test_another_model_in_the_same_place_is_another_origin(
    file: str, role: str, bundle: Path, tmp_path: Path
) -> None:
    settings = make_settings({"data": str(shutil.copytree(bundle, tmp_path / "copy"))})
    before, size = origin(settings), (tmp_path / "copy" / file).stat().st_size
    with (tmp_path / "copy" / file).open("r+b") as opened:
        opened.seek(size // 2)
        opened.write(b"?")  # of the same size
    after = origin(settings)
    assert first_difference(before["contents"], after["contents"]) == role
    assert before["values"] == after["values"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beta": "3"}, "^beta must be a whole number, not '3'"),
        ({"beta": 0}, "^beta must be 1 or more, not 0"),
        ({"batch": 2.5}, "^batch must be a whole number, not 2.5"),
        ({"lowercase": 1}, "^lowercase must be true or false, not 1"),
        ({"bigrams": "b"}, "^bigrams was removed: .* omit it"),
        ({"bech": 2}, "^There is no setting 'bech'; did you mean 'batch'?"),
        ({"quite_another": 2}, "^There is no setting 'quite_another'; choose one of: data, "),
        ({"drafter_options": '{"x": 1}'}, "There is no option 'x' of drafter 'block'"),
        ({"drafter_options": "[1]"}, r"^drafter_options: expected a JSON object .* '\[1\]'"),
        ({"beta": 3, "rule": "exact"}, "^rule exact takes no tolerance; omit beta 3, or"),
        ({"verifier": "v.pt"}, "a checkpoint was given without its dictionaries"),
        ({"data": "/nowhere"}, "the verifier's checkpoint; give it with verifier|not a folder"),
        ({"device": "cuda:99"}, "^device cuda:99 cannot be used"),
        ({"device": "meta"}, "^device meta cannot be used"),
        ({"beam": [1]}, r"^beam must be a whole number, not \[1\]"),
        ({"data": 3}, "must be a string, not 3"),
    ],
)
def test_arguments_are_checked_as_flags_are_and_called_by_their_names(
    given: dict[str, Any], message: str
) -> None:
    refused(message, SpeculativeTranslator.from_pretrained, **given)


def test_an_argument_that_is_none_is_as_if_it_was_not_given(bundle: Path) -> None:
    plain = SpeculativeTranslator.from_pretrained(str(bundle))
    nothing = {"batch": None, "dtype": None, "split": None, "beta": None, "drafter": None}
    assert SpeculativeTranslator.from_pretrained(str(bundle), **nothing).settings == plain.settings


def test_arguments_may_be_paths_json_and_numbers_of_numpy(bundle: Path) -> None:
    it = SpeculativeTranslator.from_pretrained(
        bundle,
        verifier=bundle / "verifier.safetensors",
        drafter_options='{"confidence": 0}',
        batch=numpy.int64(2),
        tau=numpy.float32(0),
        device="cpu",
    )
    assert it.settings.drafter_options == {"confidence": 0}
    assert it.translate("A man runs.").text


def test_a_pickled_translator_loads_the_same_files(bundle: Path, expected: list[str]) -> None:
    it = SpeculativeTranslator.from_pretrained(str(bundle), device="cpu", scores=False)
    assert len(pickle.dumps(it)) < 10_000
    other = copy.deepcopy(it)  # as a pickle is read
    assert [t.text for t in other.translate(LINES)] == expected
    assert other.settings == it.settings
    assert other.translate(LINES[0]).score is None


FORKED = """
import multiprocessing, sys
from specdec_plugins import SpeculativeTranslator

def work(given):
    return (given or it).translate("Two dogs run.").text

it = SpeculativeTranslator.from_pretrained(sys.argv[1], device="cpu")
expected = it.translate("Two dogs run.").text
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(work, [None, it]).get(60) == [expected] * 2
"""


def test_a_fork_translates(bundle: Path) -> None:
    run(sys.executable, "-c", FORKED, bundle, OMP_NUM_THREADS="2")


def test_the_direction_is_fixed(bundle: Path) -> None:
    with pytest.raises(UserError, match="translates from en to de; omit the languages"):
        make_settings({"data": str(bundle), "source_lang": "de"})


def test_a_bundle_whose_codes_are_not_named(tmp_path: Path) -> None:
    settings = captions(tmp_path / "bundle") / "bundle.json"
    settings.write_text(
        settings.read_text().replace('"bpe_codes": "bpe.codes"', '"bpe_codes": null')
    )
    refused("belong together", SpeculativeTranslator.from_pretrained, settings.parent)


def test_a_verifier_alone_decodes_plainly(tmp_path: Path, expected: list[str]) -> None:
    place = captions(tmp_path / "alone", drafter_name=None, drafter=None)
    assert make_settings({"data": str(place)}).strategy == "AR"
    assert served_settings({"data": str(place)}).strategy == "AR"
    assert make_settings({"data": str(place), "drafter": "lookup"}).strategy == "specdec"
    translator = SpeculativeTranslator.from_pretrained(str(place))
    assert [t.text for t in translator.translate(LINES)] == expected


def test_a_smaller_model_may_be_the_drafter(tmp_path: Path, bundle: Path) -> None:
    verifier = read_model(bundle / "verifier.safetensors")
    place = captions(tmp_path / "assisted", drafter_name="assistant", drafter=verifier)
    translator = SpeculativeTranslator.from_pretrained(str(place), block_size=4)
    (done,) = translator.translate_sentences(number_sentences(LINES[:1]))
    assert done.accepted[0] == done.drafted[0] == 4, "a model drafts for itself"


def test_servers_take_it(relaxed: Path) -> None:
    def served(**given: Any) -> Settings:
        return served_settings({"data": str(relaxed), **given})

    settings = served()
    assert (settings.beta, settings.tau) == (3, 1.5)
    assert (settings.strategy, settings.drafter, settings.block_size) == ("specdec", "block", 7)
    assert served(drafter=None).strategy == "AR"
    assert served(tokenizer=None).tokenizer is None
    assert served(block_size=3).block_size == 3


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str]:
    """A file of the lines, and where their translations shall be."""
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return str(tmp_path / "in"), str(tmp_path / "out")


def taken(path: str) -> list[str]:
    """The lines of an output, which is gone then."""
    *lines, end = Path(path).read_text(encoding="utf-8").split("\n")
    assert end == ""
    Path(path).unlink()
    return lines


def test_commands_translate_with_it(
    bundle: Path, places: tuple[str, str], expected: list[str]
) -> None:
    source, output = places
    files = ["--input-path", source, "--output-path", output]
    assert main([str(bundle), *files, "--cpu", "--quiet"]) == 0
    assert taken(output) == expected
    files = ["--input", source, "--output", output]
    assert translate.main([str(bundle), *files, "--device", "cpu"]) == 0
    assert taken(output) == expected


FILES = (VERIFIER, DRAFTER, CODES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("missing", "given", "expected"),
    [
        (None, {}, RAW_TEXT),
        (None, {"drafter_checkpoint": "d", "batch": 3}, RAW_TEXT),
        (CODES, {}, {}),
        (CODES, {"bpe_codes": "c"}, RAW_TEXT),
        (DRAFTER, {}, {"strategy": "AR", **RAW_TEXT}),
        (DRAFTER, {"drafter": "lookup"}, RAW_TEXT),
        (DRAFTER, {"drafter_checkpoint": "d"}, RAW_TEXT),
    ],
)
def test_a_folder_without_settings_gives_its_files(
    missing: str | None, given: dict[str, Any], expected: dict[str, Any], folder: Path
) -> None:
    """Those of usual names, but for what is given."""
    if missing:
        (folder / missing).unlink()
    found = {"verifier": VERIFIER, "drafter_checkpoint": DRAFTER, "bpe_codes": CODES}
    found = {name: file for name, file in found.items() if file != missing}
    expected = {**found, **given, **expected}
    ours = {name: str(folder / file) for name, file in expected.items() if file in FILES}
    assert settings_from_files(folder, given) == {**expected, **ours}


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_first_sentence_makes_nothing_that_later_ones_use(kernels: str) -> None:
    translator = SpeculativeTranslator.from_pretrained(str(BUNDLED), device="cpu", kernels=kernels)
    verifier, drafter = translator.decoder.verifier, translator.decoder.method.drafter

    def held() -> dict[tuple[str, str], int]:
        return {
            (name, field): id(value)
            for network in (verifier.network, drafter.network)
            for name, module in network.named_modules()
            for field, value in vars(module).items()
        }

    before = held()
    translator.translate(LINES[:1])
    assert held() == before
