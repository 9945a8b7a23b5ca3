"""Write the drafter's initial checkpoint: its encoder taken from a trained verifier.

The result is a whole checkpoint of ``--arch block``, so a stock fairseq trainer restores it with
``--restore-file O.pt --reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters``.
Train with the architecture flags that were given here.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.errors import UserError

# Sizes that default to the verifier's; those of copied layers must equal them.
SIZES = (
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "encoder_layers",
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_attention_heads",
    "decoder_layers",
)

# What the published drafter has, in the order of the published command.
SWITCHES = (
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "src_embedding_copy",
    "encoder_learned_pos",
    "decoder_learned_pos",
    "apply_bert_init",
)

# Switches that are on unless they are negated.
PUBLISHED = {
    "src-embedding-copy": "masked positions get a mixture of the source's embeddings",
    "encoder-learned-pos": "learned source positions, not sinusoids",
    "decoder-learned-pos": "learned target positions, not sinusoids",
    "apply-bert-init": "weights that start fresh are drawn as BERT's were",
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--verifier", type=Path, required=True, help="checkpoint of the verifier")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint to write")
    parser.add_argument("--data", type=Path, help="the drafter's data folder: check dictionaries")
    parser.add_argument("--verifier-data", type=Path, help="the verifier's data folder")
    parser.add_argument("--seed", type=int, default=1, help="of the weights that start fresh")
    parser.add_argument(
        "--init-decoder-from-verifier",
        action="store_true",
        help="copy the decoder's layers too, as far as the verifier has them",
    )
    parser.add_argument(
        "--copy-positions",
        action="store_true",
        help="start the encoder's learned positions from the verifier's positions",
    )
    parser.add_argument(
        "--print-flags",
        action="store_true",
        help="print nothing but the flags for train.py that fit the checkpoint, for scripts",
    )
    parser.add_argument("--debug", action="store_true", help="show stack traces")
    sizes = parser.add_argument_group("the drafter's architecture (default: the verifier's)")
    for name in SIZES:
        sizes.add_argument("--" + name.replace("_", "-"), type=_positive, metavar="N")
    for name in ("--max-source-positions", "--max-target-positions"):
        sizes.add_argument(name, type=_positive, default=1000, metavar="N", help="default: 1000")
    switch = argparse.BooleanOptionalAction
    for name, meaning in PUBLISHED.items():
        sizes.add_argument(f"--{name}", action=switch, default=True, help=f"{meaning} (default)")
    sizes.add_argument("--share-all-embeddings", action=switch, help="one table for both sides")
    sizes.add_argument(
        "--share-decoder-input-output-embed", action=switch, help="the projection is the table"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, not {text}")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    # Imported late, because fairseq takes seconds and --help should not; it also logs a lot.
    logging.basicConfig(level=logging.WARNING)
    from specdec_plugins.adapters.initialise import initialise_drafter
    from specdec_plugins.adapters.safe_save import save_checkpoint

    try:
        checkpoint, report = initialise_drafter(args)
        save_checkpoint(checkpoint, args.output)
    except UserError as error:
        if args.debug:
            raise
        print(f"encoder_initial.py: {error}", file=sys.stderr)
        return 1
    stream = sys.stderr if args.print_flags else sys.stdout
    print("\n".join(report), f"wrote {args.output}", sep="\n", file=stream)
    if args.print_flags:
        print(" ".join(architecture_flags(checkpoint["args"])))
    return 0


def architecture_flags(settings: argparse.Namespace) -> list[str]:
    """The flags with which train.py builds the network that a checkpoint holds."""
    flags = ["--arch", settings.arch, "--activation-fn", settings.activation_fn]
    for name in (*SIZES, "max_source_positions", "max_target_positions"):
        flags += ["--" + name.replace("_", "-"), str(getattr(settings, name))]
    for name in SWITCHES:
        if getattr(settings, name):
            flags.append("--" + name.replace("_", "-"))
    return flags


if __name__ == "__main__":
    sys.exit(main())
