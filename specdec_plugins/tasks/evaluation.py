"""Validation of a verifier: a beam search by the engine, in place of fairseq's generator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel
from torch import Tensor

from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.engine import EngineConfig
from specdec_plugins.decoding.networks import Transformer, with_fast_products
from specdec_plugins.decoding.requests import BeamParams, DecodeParams, Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.dictionaries import Dictionary as PlainDictionary
from specdec_plugins.formats.models import TrainingRecord, upgrade

_MAX_ROWS = 64  # sentences decoded at once
SEARCH = {  # what `BeamEvaluation` knows of --eval-bleu-args, with fairseq's defaults
    "beam": 5, "max_len_a": 0.0, "max_len_b": 200, "min_len": 1, "lenpen": 1.0, "unkpen": 0.0,
    "unnormalized": False,
}  # fmt: skip


class BeamEvaluation:
    """Beam search with a verifier, for ``--eval-bleu``; fairseq's generator protocol."""

    def __init__(
        self, network: Transformer, target: Dictionary, options: Mapping[str, Any]
    ) -> None:
        """options: some of ``SEARCH``. Raises ``UserError`` if they are impossible."""
        plain = PlainDictionary(target.symbols[target.nspecial :])
        verifier = TransformerVerifier(with_fast_products(network), plain.special)
        never = Constraints(bad_words=((PlainDictionary.pad,),))
        config = EngineConfig(_MAX_ROWS, measure_time=False, constraints=never)
        self._decoder = BeamDecoder(verifier, config)
        own = self._options = {**SEARCH, **options}
        penalty = 0.0 if own["unnormalized"] else own["lenpen"]
        self._beam = BeamParams(own["beam"], 1, penalty, own["unkpen"])
        self._longest = verifier.max_target_positions

    def generate(
        self, models: Any, sample: dict[str, Any], **unused: Any
    ) -> list[list[dict[str, Tensor]]]:
        """One hypothesis a sentence, tokens [T] int64."""
        rows = sample["net_input"]["src_tokens"]  # [B, S] int64, padded on either side
        sources = [row[row != PlainDictionary.pad].tolist() for row in rows]
        requests = [
            Request(str(i), own, self._params_of(len(own))) for i, own in enumerate(sources)
        ]
        results = self._decoder.decode(requests)
        return [[{"tokens": torch.tensor(r.token_ids, dtype=torch.int64)}] for r in results]

    def _params_of(self, num_source: int) -> DecodeParams:
        """Of a sentence of so many source tokens, the end included."""
        own = self._options
        most = int(own["max_len_a"] * num_source + own["max_len_b"]) + 1  # with the end
        return DecodeParams(0, min(most, self._longest), own["min_len"], beam=self._beam)


def verifier_twin(model: TransformerModel) -> Transformer:
    """A copy of a verifier's present weights as an inference network, in eval mode.

    The copy is float32 on the model's device, whatever the precision of the training. Raises
    ``UserError`` if it has parts that our network lacks.
    """
    state = upgrade(model.state_dict())
    config = Transformer.configure(state, TrainingRecord({"args": model.args}, Path("the model")))
    device = model.decoder.embed_tokens.weight.device
    return Transformer.read(config, state).to(device).eval().requires_grad_(False)
