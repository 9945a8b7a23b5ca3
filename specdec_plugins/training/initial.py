"""encoder_initial.py: the drafter's initial checkpoint, with the encoder of a trained verifier.

The result is a complete drafter checkpoint, so a stock fairseq trainer restores it with
``--restore-file O.pt --reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters``.
Train with the architecture flags that were given here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import Option, flags_of, option
from specdec_plugins.corpus.steps import flags
from specdec_plugins.formats.output import check_output

# Sizes that default to the verifier's; those of copied layers must equal them.
SIZES = [
    f"{side}_{part}"
    for side in ("encoder", "decoder")
    for part in ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
]
POSITIONS = ("max_source_positions", "max_target_positions")

# What each switch means, and whether it is on unless it is negated.
SWITCHES = {
    "src_embedding_copy": "masked positions get a mixture of the source's embeddings (on)",
    "apply_bert_init": "initialise new weights as BERT does (on)",
    "scale_encoder_embedding": "multiply the source's by sqrt(d)",
    "scale_decoder_embedding": "multiply the target's by sqrt(d)",
}
# fairseq's own switches, which train.py cannot negate.
OF_FAIRSEQ = {
    "encoder_learned_pos": "learned source positions, not sinusoids (on)",
    "decoder_learned_pos": "learned target positions, not sinusoids (on)",
    "share_all_embeddings": "one embedding table for both sides (if the verifier has one)",
    "share_decoder_input_output_embed": "the output projection is the embedding table (if the "
    "verifier's is)",
}


def main(args: argparse.Namespace) -> None:
    # Imported late, because fairseq takes seconds and --help should not.
    from specdec_plugins.formats.checkpoints import save_checkpoint
    from specdec_plugins.training.initialise import initialise_drafter

    check_output(args.output, "--output", inputs=[args.verifier], replaced=True)
    checkpoint, report = initialise_drafter(args)
    save_checkpoint(checkpoint, args.output)
    stream = sys.stderr if args.print_flags else sys.stdout
    stream.write("\n".join([*report, f"wrote {args.output}\n"]))
    if args.print_flags:
        sys.stdout.write(f"{' '.join(architecture_flags(checkpoint['args']))}\n")


def architecture_flags(settings: argparse.Namespace) -> list[str]:
    """The flags with which train.py builds the network that a checkpoint holds."""
    given = vars(settings)
    values = {name: given[name] for name in ("arch", "activation_fn", *SIZES, *POSITIONS)}
    values |= {name if given[name] else f"no_{name}": True for name in SWITCHES}
    return flags(**values, **{name: given[name] for name in OF_FAIRSEQ})


@dataclass(kw_only=True)
class InitialOptions:
    """The flags that are not the network's."""

    # fmt: off
    verifier: Path = option(MISSING, "checkpoint of the verifier")
    output: Path = option(MISSING, "checkpoint to write")
    data: Path | None = option(None, "the drafter's data folder, to check dictionaries")
    seed: int = option(1, "for newly initialised weights", least=0, most=2**32 - 1)
    print_flags: bool = option(False, "print nothing but the flags for train.py that fit the "
        "checkpoint, for scripts")
    # fmt: on


def _network(names: Iterable[str], told: str, **how: Any) -> list[Option]:
    return [Option(None, told, name=name, **how) for name in names]


COMMAND = cli.CommandLine(
    "encoder_initial.py",
    main,
    [
        *flags_of(InitialOptions),
        *_network(SIZES, "default: the verifier's", type=int, least=1),
        *_network(POSITIONS, "default: 1000", type=int, least=1),
        *(
            Option(None, told, name=name, type=bool, negative=True)
            for name, told in (SWITCHES | OF_FAIRSEQ).items()
        ),
    ],
    "Write the drafter's initial checkpoint: its encoder taken from a trained verifier.",
    removed={
        "--verifier-data": "checkpoints of train.py record their dictionaries, and --data is "
        "compared with that",
        **dict.fromkeys(
            ("--arch", "--sequential-head", "--freeze-encoder", "--cached-prefix"),
            "this command makes the published drafter, block; specdec drafter trains the faster "
            "one from a verifier",
        ),
        **dict.fromkeys(
            ("--init-decoder-from-verifier", "--decoder-layers-from", "--copy-positions"),
            "the published drafter begins with the verifier's encoder alone; omit it",
        ),
    },
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(COMMAND.run())
