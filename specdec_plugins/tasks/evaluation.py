"""Validation by decoding with the engine, in place of fairseq's sequence generator.

A verifier is validated by beam search, and a drafter by what it drafts: BLEU, and with a verifier
the accepted tokens per round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerModel
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from specdec_plugins.decoding.alone import DrafterDecoder, Unverified
from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.drafters.base import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import BlockDrafter as BlockNetwork
from specdec_plugins.decoding.networks import Transformer, with_fast_products
from specdec_plugins.decoding.networks.trained import TrainedNetwork
from specdec_plugins.decoding.requests import BeamParams, DecodeParams, Request
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.dictionaries import Dictionary as PlainDictionary
from specdec_plugins.formats.models import TrainingRecord, load_network, upgrade
from specdec_plugins.models.block_drafter import BlockDrafter

_NGRAMS = 4  # of BLEU
_MAX_ROWS = 64  # sentences decoded at once

_COUNTS = ("rounds", "emitted", "eos")
_KEYS = (
    *(f"_block_{name}" for name in _COUNTS),
    *(f"_bleu_{kind}_{order}" for kind in ("counts", "totals") for order in range(_NGRAMS)),
    "_bleu_sys_len",
    "_bleu_ref_len",
)

_Network = TypeVar("_Network", bound=TrainedNetwork)

SEARCH = {  # what `BeamEvaluation` knows of --eval-bleu-args, with fairseq's defaults
    "beam": 5, "max_len_a": 0.0, "max_len_b": 200, "min_len": 1, "lenpen": 1.0, "unkpen": 0.0,
    "unnormalized": False,
}  # fmt: skip


class Evaluation(ABC):
    """fairseq's generator protocol, by a decoder of ours."""

    _decoder: SpeculativeDecoder
    stats = DecodeStats()  # of the last batch

    @abstractmethod
    def _params_of(self, num_source: int) -> DecodeParams:
        """Of a sentence of so many source tokens, the end included."""

    def generate(
        self, models: Any, sample: dict[str, Any], **unused: Any
    ) -> list[list[dict[str, Tensor]]]:
        """One hypothesis a sentence, tokens [T] int64."""
        rows = sample["net_input"]["src_tokens"]  # [B, S] int64, padded on either side
        sources = [row[row != PlainDictionary.pad].tolist() for row in rows]
        requests = [
            Request(str(i), own, self._params_of(len(own))) for i, own in enumerate(sources)
        ]
        self._decoder.stats = DecodeStats()
        results = self._decoder.decode(requests)
        self.stats = self._decoder.stats
        return [[{"tokens": torch.tensor(r.token_ids, dtype=torch.int64)}] for r in results]


class BeamEvaluation(Evaluation):
    """Beam search with a verifier, for ``--eval-bleu``."""

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

    def _params_of(self, num_source: int) -> DecodeParams:
        own = self._options
        most = int(own["max_len_a"] * num_source + own["max_len_b"]) + 1  # with the end
        return DecodeParams(0, min(most, self._longest), own["min_len"], beam=self._beam)


class BlockEvaluation(Evaluation):
    """Decodes with a drafter. The verifier is loaded once; ``refresh`` copies the drafter's current
    weights.
    """

    def __init__(
        self,
        verifier_path: str | None,  # None = the drafter decodes alone, unverified
        params: DecodeParams,
        source: Dictionary,
        target: Dictionary,
    ) -> None:
        """Raises ``UserError`` if the verifier cannot be read or has other dictionaries."""
        plain = [PlainDictionary(d.symbols[d.nspecial :]) for d in (source, target)]
        self.verifier: TransformerVerifier | None = None
        if verifier_path is not None:
            network = load_network(Transformer, verifier_path, plain[0], plain[1])
            self.verifier = TransformerVerifier(network, plain[1].special)
        self._target = plain[1]
        self._params = params

    def refresh(self, model: BlockDrafter) -> None:
        """Copy the drafter's current weights, and decode on its device."""
        block_size = self._params.block_size
        twin = inference_twin(model, block_size)
        device = twin.decoder.tokens.weight.device
        longest = [DecodeParams().max_len, twin.config.decoder.max_positions - block_size]
        config = EngineConfig(max_rows=_MAX_ROWS, measure_time=False)
        if self.verifier is None:
            num_targets, source = len(self._target.symbols), twin.config.encoder
            nobody = Unverified(num_targets, self._target.special, device, source.vocab_size)
            drafter = DRAFTERS.build("block", DraftContext(nobody, twin))
            self._decoder = DrafterDecoder(drafter, nobody, config)
        else:
            self.verifier.network.to(device)
            drafter = DRAFTERS.build("block", DraftContext(self.verifier, twin))
            method = Method(drafter, TopBeta(), Constant(Constant.Config()))
            self._decoder = SpeculativeDecoder(self.verifier, method, config)
            longest.append(self.verifier.max_target_positions)
        self._params = replace(self._params, max_len=max(min(longest), 1))

    def _params_of(self, num_source: int) -> DecodeParams:
        return self._params

    def figures(self, bleu: Any) -> dict[str, int]:
        """Counts of the last batch that workers may add up."""
        figures = {"_bleu_sys_len": bleu.sys_len, "_bleu_ref_len": bleu.ref_len}
        if self.verifier is not None:
            figures |= {f"_block_{name}": getattr(self.stats, name) for name in _COUNTS}
        for order in range(_NGRAMS):
            figures[f"_bleu_counts_{order}"] = bleu.counts[order]
            figures[f"_bleu_totals_{order}"] = bleu.totals[order]
        return figures


def log_figures(logging_outputs: list[dict[str, Any]]) -> None:
    """Log ``bleu`` of everything that was decoded since the last report, and ``accepted``.

    ``accepted`` is the published mean: tokens a round, counting the verifier's own but not eos. It
    is left out without a verifier.
    """
    present: set[str] = set().union(*logging_outputs)
    if "_bleu_ref_len" not in present:
        return

    def total(key: str) -> int:
        return int(sum(log.get(key, 0) for log in logging_outputs))

    # One plain number per key: fairseq saves its meters in checkpoints, which cannot be loaded
    # safely if they hold numpy arrays.
    for key in filter(present.__contains__, _KEYS):
        metrics.log_scalar(key, total(key))
    if "_block_rounds" in present:
        metrics.log_derived("accepted", _accepted)
    metrics.log_derived("bleu", _bleu)


def _accepted(meters: Any) -> float:
    rounds, emitted, eos = (int(meters[f"_block_{name}"].sum) for name in _COUNTS)
    stats = DecodeStats(rounds=rounds, emitted=emitted, eos=eos)
    return round(stats.mean_accepted_tokens, 4)


def _bleu(meters: Any) -> float:
    score = BLEU.compute_bleu(
        correct=[int(meters[f"_bleu_counts_{order}"].sum) for order in range(_NGRAMS)],
        total=[int(meters[f"_bleu_totals_{order}"].sum) for order in range(_NGRAMS)],
        sys_len=int(meters["_bleu_sys_len"].sum),
        ref_len=int(meters["_bleu_ref_len"].sum),
        smooth_method="exp",
    )
    return round(score.score, 2)


def inference_twin(model: BlockDrafter, block_size: int) -> BlockNetwork:
    """A copy of the drafter's present weights; see ``_twin``."""
    return _twin(BlockNetwork, model, {**vars(model.args), "block_size": block_size})


def verifier_twin(model: TransformerModel) -> Transformer:
    """A copy of a verifier's present weights; see ``_twin``.

    Raises ``UserError`` if it has parts that our network lacks.
    """
    return _twin(Transformer, model, model.args)


def _twin(kind: type[_Network], model: Any, settings: Any) -> _Network:
    """A copy of the model's present weights as an inference network, in eval mode.

    The copy is float32 on the model's device, whatever the precision of the training.
    """
    state = upgrade(model.state_dict())
    config = kind.configure(state, TrainingRecord({"args": settings}, Path("the model")))
    device = model.decoder.embed_tokens.weight.device
    return kind.read(config, state).to(device).eval().requires_grad_(False)
