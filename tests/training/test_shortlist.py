"""Which target types the types of a source make likely."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from specdec_plugins.formats.indexed import SentenceWriter
from specdec_plugins.training import networks
from specdec_plugins.training.networks import aligned_shortlist, joined, likely_types

EOS = 2


def test_what_goes_together_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source type n means target type n + 10, in any order; 12 is in every sentence, as 22 is."""
    random = numpy.random.default_rng(0)
    sources = [[*random.choice(8, 3, replace=False) + 4, 12] for _ in range(300)]
    targets = [[int(token) + 10 for token in random.permutation(source)] for source in sources]
    first, second, t = likely_types(sources, targets, iterations=8)
    best = numpy.searchsorted(first, numpy.unique(first))
    assert (second[best] == numpy.unique(first) + 10).all()
    assert (t[best] > 0.9).all()
    for source in numpy.unique(first):
        own = t[first == source]
        assert own.sum() == pytest.approx(1)
        assert (numpy.diff(own) <= 0).all()

    for language, sentences in (("en", sources), ("de", targets)):
        symbols = (f"w{number} 1\n" for number in range(20))
        (tmp_path / f"dict.{language}.txt").write_text("".join(symbols))
        with SentenceWriter(tmp_path / f"train.en-de.{language}", 24) as writer:
            for sentence in sentences:
                writer.add([*sentence, EOS])
    found = aligned_shortlist(tmp_path)
    common, types, starts = (
        found[f"decoder.shortlist.{name}"].tolist() for name in ("common", "types", "starts")
    )
    assert len(starts) == 25
    assert sorted(common[:2]) == [EOS, 22]  # in every sentence
    assert sorted(common[2:]) == list(range(14, 22))
    for source in range(4, 12):
        assert types[starts[source]] == source + 10
    assert starts[3] == starts[4]  # does not occur

    # However long the text and its sentences are, memory for so many pairs of tokens is enough.
    monkeypatch.setattr(networks, "_PAIRS", 2 * 5 * 5)
    two = {EOS, *sources[0], *sources[1]}
    starts = aligned_shortlist(tmp_path)["decoder.shortlist.starts"]
    assert set(starts.diff().nonzero()[:, 0].tolist()) == two


def test_what_either_list_holds_is_in_both_together() -> None:
    def listed(common: list[int], types: list[int], starts: list[int]) -> dict[str, Tensor]:
        given = {"common": common, "types": types, "starts": starts}
        return {f"decoder.shortlist.{name}": torch.tensor(v).int() for name, v in given.items()}

    first = listed([2, 9], [7, 5, 6], [0, 0, 2, 3])
    second = listed([2, 4], [5, 8, 3], [0, 1, 2, 3])
    expected = listed([2, 4, 9], [5, 5, 7, 8, 3, 6], [0, 1, 4, 6])
    torch.testing.assert_close(joined(first, second), expected)
