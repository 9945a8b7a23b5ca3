"""scripts/add-shortlist.sh: which target types the types of a source make likely."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from specdec_plugins.corpus import binarising
from specdec_plugins.decoding.networks import BlockDrafter
from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint, untrained
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import read_checkpoint
from tests.bundles import CAPTIONS

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


@pytest.mark.fairseq
def test_a_drafter_is_given_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fairseq_models import build_drafter, drafter_args

    sentences = [[5, 6, EOS], [6, 7, 8, EOS], [9, 5, EOS]]
    monkeypatch.setattr(binarising, "_sentences", lambda prefix: iter(sentences))
    num_types = len(Dictionary.load(CAPTIONS / "dict.de.txt"))
    drafter, listed = tmp_path / "drafter.pt", tmp_path / "listed.pt"
    words = (CAPTIONS, "-s", "en", "-t", "de", "--path", drafter, "--output", listed)
    words = (*words, "--common", 2, "--types", 1)
    for head in (0, 8):
        model = build_drafter(num_types, arch="block_fast", sequential_head=head)
        settings = drafter_args(arch="block_fast", sequential_head=head, block_size=4)
        save_checkpoint(untrained(settings, model.state_dict()), drafter)
        if head == 0:
            with pytest.raises(UserError, match="no drafter with a sequential head"):
                binarising.SHORTLIST(*words)
    binarising.SHORTLIST(*words)
    network = read_checkpoint(listed).network(torch.float32, torch.device("cpu"))
    assert isinstance(network, BlockDrafter)
    shortlist = network.decoder.shortlist
    assert shortlist is not None
    assert shortlist.common.tolist() == [EOS, 5]
    assert shortlist.of(torch.tensor([7]), num_types).tolist()[:2] == [EOS, 5]
    assert len(shortlist.types) == 6  # one for each source type
    # The trainer goes on from it without the list.
    model.load_state_dict(load_checkpoint(listed)["model"], strict=True)
