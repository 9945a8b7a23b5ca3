"""The model card of a bundle for which nobody wrote one."""

from __future__ import annotations

from specdec_plugins.formats.model import Model

_CARD = """\
# {source} to {target}

| | |
|---|---|
{rows}

    python inference.py FOLDER --input-path raw.{source} --output-path raw.{target}

On what data these models were trained, under which licences, how well they translate and what they
are not good for was not recorded when this bundle was made. Write it here before you pass them on.
"""


def default_card(
    source: str, target: str, verifier: Model, drafter_name: str | None, drafter: Model | None
) -> str:
    """What the files themselves say."""
    rows = [f"| verifier | {_size(verifier)} |"]
    if drafter_name is not None:
        of = f", {_size(drafter)}" if drafter else ""
        rows.append(f"| drafter | {drafter_name}{of} |")
    return _CARD.format(source=source, target=target, rows="\n".join(rows))


def _size(model: Model) -> str:
    weights = {(tensor.data_ptr(), tensor.shape): tensor.numel() for tensor in model.state.values()}
    text = f"{sum(weights.values()) / 1e6:.1f} million weights"
    if model.config is None:
        return text
    encoder, decoder = model.config.encoder, model.config.decoder
    return (
        f"{encoder.num_layers}+{decoder.num_layers} layers, {decoder.dim} wide, "
        f"{decoder.vocab_size} target symbols, {text}"
    )
