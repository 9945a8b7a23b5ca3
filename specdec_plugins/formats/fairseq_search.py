"""fairseq's own beam search on the verifier: the baseline, with the other decoders' interface."""

from __future__ import annotations

import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specdec_plugins.decoding.networks.trained import NETWORKS, VERIFIER, kind_of
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import FinishReason, Request, RowResult
from specdec_plugins.errors import UserError, imported, require
from specdec_plugins.formats.bundle import WEIGHTS_SUFFIX, read_bundle, read_weights
from specdec_plugins.formats.checkpoints import allow_fairseq_checkpoints, load_checkpoint
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.models import Languages, TrainingRecord, check_direction, to_checkpoint

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class SearchConfig:
    """fairseq's generation flags, with its names and defaults."""

    beam: int = 5
    lenpen: float = 1.0  # below 1 favours short hypotheses, above 1 long ones
    max_len_a: float = 0.0  # at most max_len_a * source length + max_len_b tokens, eos not counted
    max_len_b: int = 200
    min_len: int = 1  # tokens before eos is allowed; a forced prefix is exempt
    unkpen: float = 0.0  # subtracted from the log-probability of <unk>
    no_repeat_ngram_size: int = 0  # 0 = repetitions are allowed
    max_rows: int = 1  # sentences that `run` searches at once

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("max_len_a", 0), ("max_len_b", 0)):
            flag, value = "--" + name.replace("_", "-"), getattr(self, name)
            require(value >= least, f"{flag} must be {least} or more, not {value}.")
        require(
            0 <= self.min_len <= self.max_len_b,
            f"--min-len must be between 0 and --max-len-b ({self.max_len_b}), not {self.min_len}.",
        )
        require(
            self.no_repeat_ngram_size == 0 or self.no_repeat_ngram_size >= 2,
            f"--no-repeat-ngram-size must be 0 (off) or 2 or more, "
            f"not {self.no_repeat_ngram_size}.",
        )


@dataclass(frozen=True)
class Hypothesis:
    """One translation found by the search."""

    token_ids: list[int]  # forced prefix and eos included
    score: float  # sum of log-probabilities divided by length ** lenpen


class FairseqSearch:
    """fairseq's SequenceGenerator on a model that fairseq loaded."""

    def __init__(
        self, model: Any, target_dictionary: Any, config: SearchConfig, device: torch.device
    ) -> None:
        """`model` and `target_dictionary` are fairseq's; the model is in eval mode on `device`."""
        from fairseq.sequence_generator import SequenceGenerator

        self.config = config
        self.stats = DecodeStats()  # the search has no rounds to count
        self._device = device
        self._pad = target_dictionary.pad()
        self._model = model
        generator = SequenceGenerator(
            [model],
            target_dictionary,
            beam_size=config.beam,
            max_len_a=config.max_len_a,
            max_len_b=config.max_len_b,
            min_len=config.min_len,
            len_penalty=config.lenpen,
            unk_penalty=config.unkpen,
        )
        if config.no_repeat_ngram_size:
            generator.repeat_ngram_blocker = _repeat_blocker(config.no_repeat_ngram_size)
        self._generator = generator

    @property
    def max_source_positions(self) -> int:
        """The longest source that the model reads, eos included."""
        return int(self._model.encoder.max_positions())

    @property
    def max_target_tokens(self) -> int:
        """The longest target that the model has positions for, without the eos after it."""
        return int(self._generator.max_len) - 1

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        """Yields the best hypothesis of each request, in the same form as the other decoders."""
        for start in range(0, len(requests), self.config.max_rows):
            rows = requests[start : start + self.config.max_rows]
            before = time.perf_counter()
            found = self.search([r.source_ids for r in rows], [r.forced_ids for r in rows])
            seconds = time.perf_counter() - before
            self.stats += DecodeStats(rows=len(rows), seconds={"search": seconds})
            for request, (best, *_) in zip(rows, found, strict=True):
                result = RowResult(request, best.token_ids, seconds=seconds)
                result.score = best.score * len(best.token_ids) ** self.config.lenpen
                # fairseq appends eos to a hypothesis that it cuts, one token past the limit.
                is_cut = len(best.token_ids) > request.params.max_len
                result.finish_reason = FinishReason.LENGTH if is_cut else FinishReason.EOS
                yield result

    def search(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source (ids, eos last), best first, in the order of the sources.

        fairseq derives limits from the whole batch: --max-len-a from the padded width, and
        --min-len does not apply while any row's prefix is forced. So only rows that agree in these
        are searched together, and no result depends on other rows. Raises UserError if the search
        finds nothing for a source.
        """
        prefixes = prefixes or [[]] * len(sources)
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            length = len(source) if self.config.max_len_a else 0
            groups[length, len(prefix)].append(index)
        found: dict[int, list[Hypothesis]] = {}
        for indices in groups.values():
            rows = self._search([sources[i] for i in indices], [prefixes[i] for i in indices])
            found.update(zip(indices, rows, strict=True))
        return [found[index] for index in range(len(sources))]

    def _search(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]
    ) -> list[list[Hypothesis]]:
        tokens = self._padded(sources)
        lengths = torch.tensor([len(row) for row in sources], device=self._device)
        sample = {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}
        forced = self._padded(prefixes) if prefixes[0] else None
        found = self._generator.generate([self._model], sample, prefix_tokens=forced)
        if not all(found):
            raise UserError(
                "fairseq's search found no translation for a sentence; "
                "relax --no-repeat-ngram-size or raise --max-len-b."
            )
        return [[Hypothesis(h["tokens"].tolist(), float(h["score"])) for h in row] for row in found]

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """[B, S] int64, right-padded."""
        tensors = [torch.tensor(row, device=self._device) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=self._pad)


def _repeat_blocker(size: int) -> Any:
    """fairseq's blocker of repeated n-grams, restricted to the tokens generated so far.

    fairseq 0.12 passes it the buffer of the whole hypothesis. It takes the padding at the end for
    the last n-gram, and blocks nothing.
    """
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    class RepeatBlocker(NGramRepeatBlock):
        def forward(
            self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
        ) -> Tensor:
            blocked: Tensor = super().forward(tokens[:, : step + 1], lprobs, bsz, beam_size, step)
            return blocked

    return RepeatBlocker(size, use_extension=False)


def load_fairseq_search(
    path: str | Path,
    data: str | Path,
    config: SearchConfig,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
    languages: Languages = (None, None),
) -> FairseqSearch:
    """The search on a checkpoint, with the dictionaries of the folder `data`.

    languages: those of the folder, if given; else those that it was trained on. Raises UserError
    if fairseq is not installed, the file is no checkpoint or one of the other direction, or
    fairseq cannot build its model.
    """
    state = _checked(Path(path), Path(data), languages)
    checkpoint_utils = imported("fairseq.checkpoint_utils", "train")
    allow_fairseq_checkpoints()
    logging.getLogger("hydra").setLevel(logging.INFO)  # else hydra's debug messages are printed
    overrides: dict[str, Any] = {"data": str(data), "eval_bleu": False}
    sides = zip(("source_lang", "target_lang"), languages, strict=True)
    overrides |= {side: language for side, language in sides if language is not None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # fairseq uses old names of hydra
            models, _, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(path)], arg_overrides=overrides, state=state
            )
    except Exception as error:
        # A checkpoint of another task or version can fail anywhere; the cause stays in the chain.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"{path}: fairseq cannot load it with the dictionaries in {data}: {reason[:300]}"
        ) from error
    model = models[0].to(device=device, dtype=dtype).eval()
    return FairseqSearch(model, task.target_dictionary, config, device)


def _checked(path: Path, data: Path, asked: Languages) -> dict[str, Any] | None:
    """Check a file before fairseq opens it. Raises UserError naming the fault.

    Returns a fairseq checkpoint made from a bundle's weights; None = fairseq can open the file.
    """
    if path.suffix == WEIGHTS_SUFFIX:
        model = read_weights(path)
        kind, arch = model.kind, model.arch
    else:
        record = TrainingRecord(load_checkpoint(path), path)
        trained = (record.get("source_lang"), record.get("target_lang"))
        check_direction(path, trained, asked)
        arch = record.arch
        kind = kind_of(arch)
    require(
        kind == VERIFIER,
        f"{path}: this is {NETWORKS.get(kind).noun} (arch {arch}), which fairseq's search cannot "
        "use; give the verifier's checkpoint with --AR-path.",
    )
    if path.suffix != WEIGHTS_SUFFIX:
        if any(record.digests):
            languages = (one or other for one, other in zip(asked, trained, strict=True))
            record.check_dictionaries(load_dictionaries(data, *languages))
        return None
    bundle = read_bundle(path.parent)
    checkpoint = to_checkpoint(model, bundle.source_lang, bundle.target_lang)
    checkpoint["args"].data = str(data)
    return checkpoint
