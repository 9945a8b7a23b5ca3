"""A model's rows in fairseq's order."""

from __future__ import annotations

from specdec_plugins.formats.dictionaries import dictionary_of, order_of, ours, start_of


def test_a_model_that_counts_as_fairseq_does_keeps_its_ids() -> None:
    assert order_of(6, pad=1, eos=2, unk=3, start=2) == [0, 1, 2, 3, 4, 5]
    dictionary = dictionary_of({"<s>": 0, "a": 4}, range(6), start=2)
    assert dictionary.symbols[4:] == ["a", "madeupword0005"]
    assert dictionary.special.start == dictionary.eos


def test_special_symbols_come_first_and_the_start_is_a_copy() -> None:
    """As MarianMT has it: `</s>` first, `<pad>` last, and the target begins with padding."""
    order = order_of(5, pad=4, eos=0, unk=1, start=4)
    assert order == [4, 4, 0, 1, 2, 3]
    assert ours(order) == {4: 1, 0: 2, 1: 3, 2: 4, 3: 5}
    assert start_of(order, 4) == 0
    vocabulary = {"</s>": 0, "<unk>": 1, "▁a": 2, "b": 3, "<pad>": 4}
    dictionary = dictionary_of(vocabulary, order, start=4)
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", "▁a", "b"]
    assert dictionary.special.start == 0
