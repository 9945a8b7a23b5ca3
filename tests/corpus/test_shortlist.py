"""specdec convert shortlist: which target types the types of a source make likely."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy
import pytest
import torch

from specdec_plugins.corpus import binarising
from specdec_plugins.decoding.networks import BlockDrafter
from specdec_plugins.formats.checkpoints import save_checkpoint, untrained
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary
from specdec_plugins.formats.models import read_checkpoint
from specdec_plugins.training.networks import checkpoint_of, new_drafter
from tests.bundles import CAPTIONS
from tests.refusals import refused

EOS = 2


def test_what_goes_together_is_found() -> None:
    """Source type n means target type n + 10, in any order; 9 is in every sentence, as 19 is."""
    random = numpy.random.default_rng(0)
    sources = [[*random.choice(8, 3, replace=False), 9] for _ in range(300)]
    targets = [[int(token) + 10 for token in random.permutation(source)] for source in sources]
    first, second, t = binarising.likely_types(sources, targets, iterations=8)
    best = numpy.searchsorted(first, numpy.unique(first))
    assert (second[best] == numpy.unique(first) + 10).all()
    assert (t[best] > 0.9).all()
    for source in numpy.unique(first):
        own = t[first == source]
        assert own.sum() == pytest.approx(1)
        assert (numpy.diff(own) <= 0).all()


BOTH = Dictionaries(
    Dictionary(["the", "house", "is"]), Dictionary(["das", "Haus", "ist"]), "en", "de"
)


def _written(folder: Path, text: str | bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_marian_s_list_is_read(tmp_path: Path) -> None:
    lines = "das the 0.5\nHaus house 0.25\nHaus house 0.75\nNULL the 0.1\nder the 0.2\nist NULL 1\n"
    pairs = binarising.read_lexical(_written(tmp_path, lines), BOTH)
    assert pairs == {(4, 4): 0.5, (5, 5): 0.75}
    packed = _written(tmp_path, gzip.compress(lines.encode()), "lex.s2t.gz")
    assert binarising.read_lexical(packed, BOTH) == pairs


def test_ctranslate2_s_map_is_read(tmp_path: Path) -> None:
    """What two types make likely is with the rarer of them, behind what that type does alone."""
    lines = "\tist das der\nhouse\tHaus\nhouse the\tdas Haus\nis a\tist\nis\t\n"
    pairs, always = binarising.read_vmap(_written(tmp_path, lines), BOTH)
    assert always == [6, 4]
    assert sorted(pairs, key=pairs.__getitem__, reverse=True) == [(5, 5), (5, 4)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("das the", "line 2: expected a target type, a source type and a prob.* found 'das the'"),
        ("das the much", "line 2: expected .* from 0 to 1, found 'das the much'"),
        ("das the 1.5", "line 2: expected .* from 0 to 1, found 'das the 1.5'"),
        ("das the nan", "line 2: expected .* from 0 to 1, found 'das the nan'"),
        ("das the 0.5 0-0", "line 2: expected a target type"),
        ("", "line 2: expected a target type, .* found ''; give Marian's lexical shortlist"),
        (
            b"das\xff the 1",
            r"line 2: not UTF-8 \(byte 4 .* is 0xff\); convert the file with iconv$",
        ),
    ],
)
def test_bad_lines_of_marian_s_list(tmp_path: Path, line: str | bytes, message: str) -> None:
    raw = line if isinstance(line, bytes) else line.encode()
    path = _written(tmp_path, b"Haus house 1\n" + raw + b"\n")
    refused(message, binarising.read_lexical, path, BOTH)


@pytest.mark.parametrize("line", ["house Haus", "house\tHaus\tdas", ""])
def test_bad_lines_of_ctranslate2_s_map(tmp_path: Path, line: str) -> None:
    path = _written(tmp_path, f"\tdas\n{line}\n")
    refused("line 2: expected source types, a tab and target", binarising.read_vmap, path, BOTH)


def test_files_of_other_vocabularies_are_refused(tmp_path: Path) -> None:
    message = "no pair has both types in the dictionaries"
    refused(message, binarising.read_lexical, _written(tmp_path, "the das 0.5\n"), BOTH)
    refused(message, binarising.read_vmap, _written(tmp_path, "das\tthe\n"), BOTH)
    refused("empty; give a file", binarising.read_vmap, _written(tmp_path, ""), BOTH)


@pytest.mark.fairseq
@pytest.mark.parametrize(
    ("flags", "common", "of_in"),
    [
        (("--lexical", "lex.s2t"), [EOS, 4, 5], [7, 8]),
        (("--lexical", "lex.s2t", "--types", 1, "--common", 0), [EOS], [7]),
        (("--lexical", "lex.s2t", "--least", 0.3), [EOS, 4, 5], [7]),
        (("--vmap", "map.txt"), [EOS, 9, 4, 5], [8, 7]),
    ],
)
def test_a_drafter_is_given_the_list_of_a_file(
    tmp_path: Path, flags: tuple[object, ...], common: list[int], of_in: list[int]
) -> None:
    """In the dictionary of the captions ``in`` is 6, ``A``, ``Ein`` and ``einem`` are 7 to 9."""
    _written(tmp_path, "Ein in 0.2\nA in 0.6\n", "lex.s2t")
    _written(tmp_path, "\teinem\nin\tEin A\n", "map.txt")
    drafter, listed = _drafter(tmp_path), tmp_path / "listed.pt"
    kind, name, *more = flags
    words = (CAPTIONS, "-s", "en", "-t", "de", "--path", drafter, "--output", listed)
    binarising.SHORTLIST(*words, "--common", 2, kind, tmp_path / str(name), *more)
    network = read_checkpoint(listed).network(torch.float32, torch.device("cpu"))
    assert isinstance(network, BlockDrafter)
    shortlist = network.decoder.shortlist
    assert shortlist is not None
    assert shortlist.common.tolist() == common
    assert shortlist.types.tolist() == of_in
    num_types = len(network.decoder.tokens.weight)
    assert shortlist.of(torch.tensor([6, EOS]), num_types).tolist() == sorted({*common, *of_in})


@pytest.mark.fairseq
def test_flags_of_the_command_that_do_not_go_together(tmp_path: Path) -> None:
    drafter = _drafter(tmp_path)
    file = _written(tmp_path, "das the 1\n")
    words = (CAPTIONS, "-s", "en", "-t", "de", "--path", drafter, "--output", tmp_path / "out")
    for flags, message in (
        (("--lexical", file, "--vmap", file), "give either --lexical or --vmap"),
        (("--lexical", file, "--sentences", 5), "--sentences does not apply to --lexical"),
        (("--vmap", file, "--types", 5), "--types does not apply to --vmap"),
        (("--vmap", tmp_path / "none"), "--vmap .*none: no such file"),
    ):
        refused(message, binarising.SHORTLIST, *words, *flags)
    for side in ("en", "de"):
        _written(tmp_path, "the 5\n", f"dict.{side}.txt")
    words = (tmp_path, *words[1:], "--lexical", file)
    refused("trained with dictionaries of 79", binarising.SHORTLIST, *words)
    assert not (tmp_path / "out").exists()


def _drafter(folder: Path) -> Path:
    verifier = read_checkpoint(CAPTIONS / "verifier.pt")
    made = checkpoint_of(new_drafter(verifier, 4, seed=1), {}, verifier)
    save_checkpoint(made, folder / "drafter.pt")
    return folder / "drafter.pt"


@pytest.mark.fairseq
def test_a_drafter_is_given_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fairseq_models import build_drafter, drafter_args

    sentences = [[5, 6, EOS], [6, 7, 8, EOS], [9, 5, EOS]]
    monkeypatch.setattr(binarising, "_sentences", lambda prefix: iter(sentences))
    num_types = len(Dictionary.load(CAPTIONS / "dict.de.txt"))
    drafter, listed = tmp_path / "drafter.pt", tmp_path / "listed.pt"
    words = (CAPTIONS, "-s", "en", "-t", "de", "--path", drafter, "--output", listed)
    words = (*words, "--common", 2, "--types", 1)
    settings = drafter_args(block_size=4)
    save_checkpoint(untrained(settings, build_drafter(num_types).state_dict()), drafter)
    refused("not a drafter with a sequential head", binarising.SHORTLIST, *words)
    _drafter(tmp_path)
    binarising.SHORTLIST(*words)
    network = read_checkpoint(listed).network(torch.float32, torch.device("cpu"))
    assert isinstance(network, BlockDrafter)
    shortlist = network.decoder.shortlist
    assert shortlist is not None
    assert shortlist.common.tolist() == [EOS, 5]
    assert shortlist.of(torch.tensor([7]), num_types).tolist()[:2] == [EOS, 5]
    assert len(shortlist.types) == 6  # one for each source type
