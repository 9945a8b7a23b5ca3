"""benchmarks/summaries.py: what its text is made of, and a model of a second on this package."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from benchmarks import summaries
from benchmarks.summaries import COMMAND, STANDARD, pairs_of, read_pairs, roots
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.types import Verifier
from specdec_plugins.errors import UserError
from tests.bundles import ROOT

CODE = '''
class Box(Base, metaclass=Meta):
    """A box of things to keep.

    Not for eggs.
    """

    size: int = 3

    async def put(self, thing: "Thing", *, gently: bool = True) -> None:
        """Put a thing
        into the box.
        """
        self.things.append(thing)  # at the end

    def size(self):
        """Too short."""

    def weight(self):
        return 3
'''


def test_a_definition_and_what_an_index_says_of_it() -> None:
    (source, summary), (inner, said) = pairs_of(CODE)
    assert summary == "Box(Base): A box of things to keep."
    assert source.startswith("class Box(Base, metaclass=Meta): Not for eggs. size: int = 3 async")
    assert said == "put(self, thing, *, gently=True): Put a thing into the box."
    assert inner == (
        'async def put(self, thing: "Thing", *, gently: bool = True) -> None: '
        "self.things.append(thing) # at the end"
    )


def test_only_packages_whose_licence_is_known_are_read() -> None:
    found = roots()
    assert found.keys() - {STANDARD} <= summaries.LICENCES.keys()
    assert {"numpy", "torch", STANDARD} <= found.keys()
    assert all(root.is_dir() for root, _ in found.values())


@pytest.mark.parametrize(
    ("target", "block_size", "rounds"),
    [
        ([0, 5, 6, 7, 9, 2], 4, 2),  # three are copied, 9 is not, nothing follows a 9
        ([0, 5, 6, 7, 9, 2], 0, 5),
        ([0, 5, 6, 7, 8, 2], 3, 2),
        ([0, 9, 6, 7, 8, 2], 5, 3),
        ([0, 9, 9, 9, 9, 9, 9, 2], 5, 5),  # 9, 9, 9 9, 9 9 and the end: what stands is copied
    ],
)
def test_rounds_of_a_copy(target: list[int], block_size: int, rounds: int) -> None:
    context = DraftContext(cast(Verifier, summaries.Words()))
    drafter = DRAFTERS.build("lookup", context)
    source = torch.tensor([0, 5, 6, 7, 8, 2])
    assert summaries.rounds_of(drafter, source, torch.tensor(target), block_size) == rounds


def test_text_and_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"specdec_plugins": (ROOT / "specdec_plugins", "MIT")}
    monkeypatch.setattr(summaries, "roots", lambda: here)
    for name, value in {"VOCABULARY": 400, "WIDTH": 32, "_REPORT_EVERY": 0}.items():
        monkeypatch.setattr(summaries, name, value)
    COMMAND("--output", tmp_path, "--minutes", 0.02)
    assert len(read_pairs(tmp_path, "train")) > 500
    held_out = read_pairs(tmp_path, "test")
    assert not set(held_out) & set(read_pairs(tmp_path, "train"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| specdec_plugins | MIT |" in card
    assert "| CPU minutes | updates | valid loss |\n| ---: | ---: | ---: |\n| 0 | 1 |" in card
    assert "| `lookup`, block size | tokens a round on the references |" in card
    sources = [source for source, _ in held_out][:6]
    said = [
        [
            (t.text, t.tokens)
            for t in SpeculativeTranslator.from_pretrained(
                tmp_path / "model", device="cpu", truncate_source=True, min_len=20, **how
            ).translate(sources)
        ]
        for how in ({"strategy": "AR"}, {"drafter": "lookup", "block_size": 10, "batch": 4})
    ]
    assert said[0] == said[1]
    assert all(len(tokens) >= 20 for _, tokens in said[0])
    with pytest.raises(UserError, match=r"model\.safetensors: already exists"):
        COMMAND("--output", tmp_path)
