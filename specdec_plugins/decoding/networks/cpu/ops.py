"""The kernels as a module, and steps of a round that `TorchLane` and its parts share.

The kernels are this project's own, in C++ in this folder, for CPUs. Rows of a vocabulary are read
by them where `compiled` says so: then a row's result does not depend on other rows, on threads, or
on how many of its largest are asked for. All else is torch's. Kernels for layers: products.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.errors import UserError


def _load() -> tuple[Any, str]:
    """The extension module, or None and what is wrong with it."""
    try:
        module = import_module("specdec_plugins.decoding.networks.cpu._kernels")
    except ModuleNotFoundError:
        return None, "were not compiled"
    except ImportError as error:
        return None, f"cannot be loaded ({error})"
    if _sources() not in ("", getattr(module, "sources", None)):
        return None, "are older than their sources"
    return module, ""


def _sources() -> str:
    """The hash of the C++ files, as in setup.py; empty where they were not installed."""
    paths = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".cpp", ".h", ".inc"))
    return sha256(b"".join(p.read_bytes() for p in paths)).hexdigest() if paths else ""


native, fault = _load()

_DTYPES = (torch.float32, torch.int64)
log = logging.getLogger("specdec.decoding")


class PackedTable:
    """A table of tokens [V, D] in the 8 bits of an output projection; what is read is float32."""

    dtype, is_cpu, device = torch.float32, True, torch.device("cpu")

    def __init__(self, packed: Any, num_rows: int, dim: int) -> None:
        self.packed, self.shape = packed, (num_rows, dim)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Tensor | slice) -> Tensor:
        """The rows of tokens [...] int64, or of a range: [..., D]."""
        if isinstance(which, slice):
            which = torch.arange(*which.indices(len(self)))
        rows = torch.empty(which.numel(), self.shape[1])
        self.packed.rows(which.flatten(), rows)
        return rows.view(*which.shape, -1)


Table = Tensor | PackedTable


def unwrapped(table: Table) -> Any:
    """A table as the kernels take it."""
    return table.packed if isinstance(table, PackedTable) else table.detach()


def compiled(tensor: Table) -> bool:
    """True if the kernels were built and support the device and dtype of this tensor."""
    return native is not None and tensor.is_cpu and tensor.dtype in _DTYPES


@cache
def warn_if_missing() -> None:
    """Warn once if there are no kernels, and say why and how to get them."""
    if native is None:
        log.warning(
            "The kernels for CPUs %s, so decoding on a CPU takes several times as long. To get "
            "them, install a C++ compiler and Python's headers (on Debian and Ubuntu: apt-get "
            "install g++ python3-dev), then run `make setup`, or pip install, again.",
            fault,
        )


def instruction_sets() -> list[str]:
    """The usable ones, the best first; none if the kernels were not built.

    The environment variable SPECDEC_INSTRUCTION_SET puts another one first, to test or measure it.
    Raises UserError where the processor cannot run that one.
    """
    if native is None:
        return []
    try:
        names: list[str] = native.instruction_sets()
    except ValueError as error:
        raise UserError(f"{error}.") from None
    return names


def best_set() -> str | None:
    """The instruction set that is used, or None where the kernels were not built."""
    return next(iter(instruction_sets()), None)


def on_device(
    numbers: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """`torch.tensor` of these, but the host does not wait until the device has read them."""
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


def best(logits: Tensor) -> Tensor:
    """The argmax, the first of equal ones: [...] int64 of [..., V]."""
    if not compiled(logits):
        return logits.argmax(-1)
    out = torch.empty(logits.shape[:-1], dtype=torch.int64)
    native.best(logits=logits, out=out, threads=torch.get_num_threads())
    return out


def log_total(logits: Tensor) -> Tensor:
    """log(sum(exp)) over the vocabulary: [...] of [..., V], in the precision of the logits."""
    if not compiled(logits):
        return logits.logsumexp(-1)
    out = logits.new_empty(logits.shape[:-1])
    native.log_total(logits, out, torch.get_num_threads())
    return out


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest logits of each row and their ids, the best first: [M, count] both, of [M, V]."""
    if not compiled(logits):
        best = logits.topk(count)
        return best.values, best.indices
    scores = logits.new_empty(len(logits), count)
    tokens = torch.empty(scores.shape, dtype=torch.int64)
    native.largest(logits=logits, scores=scores, tokens=tokens, threads=torch.get_num_threads())
    return scores, tokens


def leading_best(logits: Tensor, drafted: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """How many leading drafted tokens are argmaxes, and the argmax after these.

    logits: [B, K+1, V], drafted: [B, K] int64, of which `lengths` [B] int64 count. Returns both
    [B] int64.
    """
    own = best(logits)  # [B, K+1]
    columns = torch.arange(drafted.shape[1], device=drafted.device)
    num_kept = leading_true((drafted == own[:, :-1]) & (columns < lengths[:, None]))
    return num_kept, at(own, num_kept)


def leading_log_probs(logits: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The log-probabilities of each row's first tokens, 0 for the rest: [B, N] float64.

    logits: [B, N, V], tokens: [B, N] int64, of which `lengths` [B] int64 count. Normalised in
    float32 at least; in float64 it would cost as much as the verifier's projection.
    """
    logits = logits.float() if logits.itemsize < 4 else logits
    total = log_total(logits).double()  # [B, N]
    counts = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    known = tokens.masked_fill(~counts, 0)  # junk may not be a token id
    log_probs = logits.gather(-1, known[..., None])[..., 0].double() - total
    return log_probs.masked_fill(~counts, 0.0)


def rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """The rank of each token when ids are sorted by descending logit.

    logits: [..., V]; tokens: [...] int64. Returns [...] int64, 0 for the argmax. Equal logits
    are ordered by id, as argmax breaks ties, so rank 0 is exactly the argmax.
    """
    own = logits.gather(-1, tokens[..., None])
    ids = torch.arange(logits.shape[-1], device=logits.device)
    before = (logits > own) | ((logits == own) & (ids < tokens[..., None]))
    return before.sum(-1)


def failed(logits: Tensor, columns: Tensor, active: Tensor) -> Tensor:
    """The active rows where the largest of logits[b, columns[b]] is not finite: [B] bool.

    logits: [B, N, V]; columns: [B] int64, clamped to 0..N-1; active: [B] bool. It is not finite if
    a logit is NaN or overflowed, or if every token is banned.
    """
    own = at(logits, columns.clamp(0, logits.shape[1] - 1))
    return active & ~own.amax(-1).isfinite()


def additive(kept_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where True, minus infinity where False, of that dtype.

    Attention turns a bool mask into this in every layer; building it once a pass is cheaper.
    """
    zeros = torch.zeros(kept_mask.shape, dtype=dtype, device=kept_mask.device)
    return zeros.masked_fill_(~kept_mask, -math.inf)


def mask_of_bits(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """`additive` of bits, 64 a number, the lowest first: [..., 64 W] of [..., W] int64."""
    bits = seen[..., None] >> torch.arange(64, device=seen.device) & 1
    return additive(bits.bool().flatten(-2), dtype)


def leading_true(mask: Tensor) -> Tensor:
    """How many entries of each row are True before the first False.

    mask: [B, K] bool. Returns [B] int64. Example: [[1, 1, 0, 1], [0, 1, 1, 1]] gives [2, 0].
    """
    return mask.long().cumprod(1).sum(1)


def at(values: Tensor, index: Tensor) -> Tensor:
    """values[b, index[b]]: [B, N, ...] and [B] int64 give [B, ...]."""
    shape = (-1, 1, *values.shape[2:])
    expanded = index.view(-1, *[1] * (values.dim() - 1)).expand(shape)
    return values.gather(1, expanded).squeeze(1)


def count_tokens(tokens: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Position of each token, not counting padding, and the padding mask: both [B, S].

    Returns int64 positions from 0 (junk at padding) and a bool mask, True = padding.
    """
    padding_mask = tokens == pad
    return ((~padding_mask).cumsum(1) - 1).clamp(min=0), padding_mask
