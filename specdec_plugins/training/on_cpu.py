"""Training on a CPU: faster forms of what torch and fairseq compute slowly there.

Results differ from theirs by rounding alone; dropout draws other masks, from torch's generator.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.transformer import TransformerDecoder, TransformerDecoderBase
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.optim import adam
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.adamw import adamw

from specdec_plugins.training.objective import ProjectedLoss, dropout_mask

_forward = LabelSmoothedCrossEntropyCriterion.forward
_attention = functional.scaled_dot_product_attention


@contextmanager
def quick(bfloat16: bool) -> Iterator[None]:
    """Trainings inside the block use these operations."""
    criterion = LabelSmoothedCrossEntropyCriterion
    with ExitStack() as stack:
        stack.enter_context(patch.object(adam, "Adam", Adam))
        # Where float16 overflows, fairseq moves a zero to the GPU.
        stack.enter_context(patch.object(Tensor, "cuda", lambda tensor: tensor))
        if bfloat16:
            stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attention))
            stack.enter_context(patch.object(FairseqDropout, "forward", dropout))
            stack.enter_context(patch.object(criterion, "forward", projected_loss))
        yield


def dropout(module: FairseqDropout, x: Tensor, inplace: bool = False) -> Tensor:
    """FairseqDropout.forward. x: [*], of any dtype; its result has that shape and dtype."""
    if module.p > 0 and (module.training or module.apply_during_inference):
        return x * dropout_mask(x, module.p)
    return x


def attention(
    query: Tensor,  # [B, H, T, D]
    key: Tensor,  # [B, H, S, D]
    value: Tensor,  # [B, H, S, D]
    attn_mask: Tensor | None = None,  # broadcast to [B, H, T, S], added to the scores
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Tensor:  # [B, H, T, D]
    """torch.nn.functional.scaled_dot_product_attention, which widens bfloat16 to float32."""
    is_plain = query.dim() == key.dim() == value.dim() == 4 and not (
        is_causal or any(named.values())
    )
    is_added = attn_mask is None or attn_mask.is_floating_point()
    if query.dtype is torch.bfloat16 and is_plain and is_added:
        return Attention.apply(query, key, value, attn_mask, dropout_p)
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, **named)


class Attention(torch.autograd.Function):
    """Its products are in the dtype of what it is given. A row that sees no key is a mean."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, share: float
    ) -> Tensor:
        """Shapes are those of `attention`; share: of the probabilities that dropout leaves out."""
        ctx.scale = query.shape[-1] ** -0.5
        q, k, v = (x.contiguous().flatten(0, 1) for x in (query, key, value))
        q = q * ctx.scale
        scores = (q @ k.mT).view(*query.shape[:3], -1)
        if mask is not None:
            scores += mask.clamp(min=torch.finfo(mask.dtype).min)
        p = scores.softmax(-1).flatten(0, 1)
        kept = dropout_mask(p, share) if share else None
        ctx.save_for_backward(q, k, v, p, kept)
        return ((p if kept is None else p * kept) @ v).view_as(query)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, kept = ctx.saved_tensors
        heads = given[0].shape[:2]
        slope = given[0].contiguous().flatten(0, 1)
        of_p = slope @ v.mT
        if kept is not None:
            of_p *= kept
        of_scores = torch.ops.aten._softmax_backward_data(of_p, p, -1, p.dtype)
        of_value = (p if kept is None else p * kept).mT @ slope
        of_query = (of_scores @ k).mul_(ctx.scale)
        of_each = of_query, of_scores.mT @ q, of_value
        return *(x.unflatten(0, heads) for x in of_each), None, None


class Adam(torch.optim.Optimizer):
    """As fairseq.optim.adam.Adam, with its state, in one pass over each tensor."""

    supports_memory_efficient_fp16 = supports_flat_params = True
    supports_step_with_scale = True  # which divides the gradients

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Any = None, scale: Any = 1.0) -> None:  # type: ignore[override]
        """Update the weights that have a gradient; no closure is called."""
        divisor = torch.as_tensor(scale, dtype=torch.float32)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group, None if divisor == 1 else divisor)

    def _update(
        self, weight: Tensor, gradient: Tensor, group: dict[str, Any], divisor: Tensor | None
    ) -> None:
        precision = torch.promote_types(weight.dtype, torch.float32)
        whole, gradient = weight.to(precision), gradient.to(precision)
        state = self.state[weight]
        if not state:
            first, second = torch.zeros_like(whole), torch.zeros_like(whole)
            state |= {"step": 0, "exp_avg": first, "exp_avg_sq": second}
        moments = [state[name].to(precision) for name in ("exp_avg", "exp_avg_sq")]
        before, (beta1, beta2) = torch.tensor(float(state["step"])), group["betas"]
        # torch adds epsilon to the corrected second moment's root, fairseq to that before.
        epsilon = group["eps"] / math.sqrt(1 - beta2 ** (state["step"] + 1))
        adamw(
            [whole], [gradient], [moments[0]], [moments[1]], [], [before], fused=True,
            grad_scale=divisor, lr=group["lr"], eps=epsilon, weight_decay=group["weight_decay"],
            beta1=beta1, beta2=beta2, amsgrad=False, maximize=False,
        )  # fmt: skip
        state |= {"step": state["step"] + 1, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
        if whole is not weight:
            weight.copy_(whole)


def projected_loss(
    criterion: LabelSmoothedCrossEntropyCriterion,
    model: Any,
    sample: dict[str, Any],
    reduce: bool = True,
) -> tuple[Tensor, int, dict[str, Any]]:
    """LabelSmoothedCrossEntropyCriterion.forward, without the logits of all positions at once."""
    table = _output_table(model)
    if table is None or not reduce or criterion.report_accuracy or criterion.ignore_prefix_size:
        return _forward(criterion, model, sample, reduce)
    # No weights of attention are wanted.
    states, _ = model(**sample["net_input"], features_only=True, alignment_layer=-1)
    targets = sample["target"].flatten()
    scored = (targets != criterion.padding_idx).nonzero()[:, 0]
    share = criterion.eps / (len(table) - 1)  # of every type but the target
    chosen = states.flatten(0, 1)[scored], table, targets[scored][:, None]
    loss, plain = ProjectedLoss.apply(*chosen, torch.ones(len(scored), 1), share)
    size = sample["target"].size(0) if criterion.sentence_avg else sample["ntokens"]
    counts = {"ntokens": sample["ntokens"], "nsentences": len(sample["target"])}
    return loss, size, {"loss": loss.data, "nll_loss": plain.data, **counts, "sample_size": size}


def _output_table(model: Any) -> Tensor | None:
    """The matrix that makes logits of the states of fairseq's Transformer, if nothing else does."""
    decoder: Any = getattr(model, "decoder", None)
    if (
        type(decoder) not in (TransformerDecoder, TransformerDecoderBase)
        or decoder.adaptive_softmax
    ):
        return None
    output = decoder.output_projection
    is_plain = isinstance(output, nn.Linear) and output.bias is None and hasattr(model, "encoder")
    return output.weight if is_plain else None
