"""Sequence-level distillation (Kim and Rush 2016): a training set with the verifier's targets.

Chunk c belongs to shard c % num_shards; with ``--ray`` a cluster shares all chunks out instead.
Once all are there, whoever finished the last one binarises them to OUT.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.corpus import cli, distill_ray
from specdec_plugins.corpus.cli import UNFINISHED, logger
from specdec_plugins.corpus.distill_job import Job, Shard, is_done, merge
from specdec_plugins.corpus.resume import locked
from specdec_plugins.corpus.teacher import DataBin, Search, Teacher
from specdec_plugins.errors import UserError, not_installed


def _device(cpu: bool, fp16: bool) -> torch.device:
    if not cpu and torch.cuda.is_available():
        return torch.device("cuda")
    if fp16:
        raise UserError("--fp16 needs a GPU; leave it out to distil on the CPU")
    return torch.device("cpu")


def _parser() -> argparse.ArgumentParser:
    number = cli.at_least(1)
    parser = cli.parser(
        "Translate a training set with the verifier and binarise the result as a new data-bin with "
        "the same dictionaries, dev and test sets. Run again, the command goes on where it "
        "stopped.",
        prog="distill.sh",
    )
    parser.add_argument("data", type=Path, help="data-bin to distil")
    parser.add_argument("--path", type=Path, required=True, help="checkpoint of the verifier")
    parser.add_argument("--output", type=Path, required=True, help="data-bin to write")
    parser.add_argument("--subset", default="train", help="part of the data-bin")
    parser.add_argument("--beam", type=number, default=5, help="1 is greedy")
    parser.add_argument("--lenpen", type=float, default=1.0, help="above 1 favours long outputs")
    parser.add_argument(
        "--max-len-a",
        type=cli.at_least(0, float),
        default=0.0,
        help="at most A * source tokens + B target tokens",
    )
    parser.add_argument("--max-len-b", type=number, default=200, help="see --max-len-a")
    parser.add_argument("--max-tokens", type=number, default=4096, help="source tokens a batch")
    _add_work(parser)
    return parser


def _add_work(parser: argparse.ArgumentParser) -> None:
    number = cli.at_least(1)
    parser.add_argument("--fp16", action="store_true", help="half precision, on a GPU")
    parser.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    parser.add_argument("--chunk-size", type=number, default=2000, help="sentences lost by a stop")
    parser.add_argument("--num-shards", type=number, default=1, help="machines at work")
    parser.add_argument("--shard-id", type=cli.at_least(0), default=0, help="from 0")
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="share the chunks out on this Ray cluster, or on 'local' processes; what dies is done "
        "again (default: no Ray)",
    )
    parser.add_argument("--ray-workers", type=number, default=2, help="verifiers on the cluster")
    parser.add_argument(
        "--until",
        type=cli.at_least(0, float),
        default=0.0,
        metavar="TIME",
        help=f"stop behind the chunk of that Unix time with exit status {UNFINISHED}; the same "
        "command goes on (default: no end)",
    )
    parser.add_argument("--merge", action="store_true", help="only put finished chunks together")


def main(args: argparse.Namespace) -> None:
    if args.shard_id >= args.num_shards:
        raise UserError(f"--shard-id {args.shard_id}: expected 0 to {args.num_shards - 1}")
    if args.ray is not None and args.num_shards > 1:
        raise UserError("--ray shares all chunks out itself; leave --num-shards away")
    search = Search(args.beam, args.lenpen, args.max_len_a, args.max_len_b, args.fp16)
    data = DataBin.find(args.data.resolve(), args.subset)
    output = args.output.resolve()
    if output == data.folder:
        raise UserError(f"--output {output}: is the data itself; give another folder")
    job = Job(data, args.path.resolve(), search, output, args.chunk_size)
    settings = job.settings()
    if is_done(job, settings):
        return

    finished = True
    if args.merge:
        job.claim(settings)
    else:
        finished = _translate(args, job, settings)
    others = Shard(job, settings["num_sentences"], 1, 0).missing
    if not finished:
        logger.info("time is up; %d chunks are missing, and the same command goes on", len(others))
        raise SystemExit(UNFINISHED)
    if others and not args.merge:
        logger.info("this shard is done; %d chunks of other shards are missing", len(others))
        return
    merge(job, settings)


def _translate(args: argparse.Namespace, job: Job, settings: dict[str, Any]) -> bool:
    """Translate the chunks of this shard; whether there was time for all of them."""
    by_ray = args.ray is not None
    if by_ray and not distill_ray.is_installed():
        logger.warning("%s; distilling in one process", not_installed("ray", "ray"))
        by_ray = False
    # Loaded before anything is recorded: a checkpoint that cannot be used leaves nothing behind.
    teacher = None if job.is_begun else _teacher(args, job)
    job.claim(settings)
    with locked(job.parts / f"shard-{args.shard_id}-of-{args.num_shards}"):
        shard = Shard(job, settings["num_sentences"], args.num_shards, args.shard_id)
        logger.info("%d of %d chunks to do", len(shard.missing), shard.num_chunks)
        if not shard.missing:
            return True
        if by_ray:
            del teacher  # the workers have their own
            cluster = distill_ray.Cluster(args.ray, args.ray_workers, args.cpu)
            return distill_ray.run_on_cluster(job, shard, cluster, args.max_tokens, args.until)
        return shard.run(teacher or _teacher(args, job), args.max_tokens, args.until)


def _teacher(args: argparse.Namespace, job: Job) -> Teacher:
    return Teacher(job.data, job.checkpoint, job.search, _device(args.cpu, args.fp16))


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
