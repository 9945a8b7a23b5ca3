"""train.py: fairseq-train with this plugin, and the same flags.

Unlike fairseq-train, it trains in several processes under torch's launcher (``torchrun
--nproc-per-node 2 train.py ...``) on CPUs too, and in bfloat16 on GPUs and CPUs (``--bf16``), and
refuses impossible settings before any model is built.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from threading import Thread
from typing import Any

from specdec_plugins.corpus.reading import check_file
from specdec_plugins.corpus.resume import locked
from specdec_plugins.errors import (
    ENDING,
    INTERRUPTED,
    Parser,
    Stopped,
    UserError,
    handling,
    refuse,
    require,
)
from specdec_plugins.formats.output import check_output

NAME = "train.py"
# Flags of published commands, or of earlier versions, and what to do instead
REFUSED = {
    "--min-lr": "fairseq calls this flag --stop-min-lr now; give that",
    "--place-decay": "was removed, as it gained nothing; omit it",
    "--eval-block-decoding": "was removed; the log says what a verifier would accept, as "
    "expected_length",
}
# Beginnings of warnings on which users cannot act: they are for the authors of fairseq.
UNHELPFUL = (
    r"(?s).*(hydra\.cc|hydra\.experimental)",
    r"\s*The version_base parameter is not specified",
    "'pin_memory' argument is set as true but no accelerator is found",
    "Support for mismatched key_padding_mask and attn_mask is deprecated",
    r"`torch\.cuda\.amp\.",
)
# What fairseq says where sentences are longer than a batch may be
TOO_LONG = re.compile("should not exceed max_tokens|dataset is empty")
PLUGIN = Path(__file__).resolve().parents[1]


def command_line(given: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The arguments for fairseq, which load the plugin and connect a launcher's processes."""
    import torch

    arguments = list(given)
    if not _has(arguments, "--user-dir"):
        arguments += ["--user-dir", str(PLUGIN)]
    num_processes = environment.get("WORLD_SIZE", "1")
    if num_processes != "1" and not _has(arguments, "--distributed-init-method"):
        # fairseq finds out by itself only where a process sees several GPUs.
        arguments += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
        arguments += ["--distributed-world-size", num_processes]
        arguments += ["--distributed-rank", environment["RANK"]]
        if "--cpu" in arguments or not torch.cuda.is_available():
            arguments += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
        else:
            arguments += ["--device-id", environment["LOCAL_RANK"]]
    return arguments


def _has(arguments: Sequence[str], flag: str) -> bool:
    return any(a == flag or a.startswith(flag + "=") for a in arguments)


def _settings(arguments: Sequence[str]) -> Any:
    """fairseq's settings of this run, adjusted to what torch can do today."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    for flag, told in REFUSED.items():
        require(not _has(arguments, flag), f"{flag}: {told}")
    parser = options.get_training_parser()
    # Listing fairseq's hundreds of flags would bury the message about one of them.
    parser.__class__ = Parser
    parser.prog, parser.usage = NAME, f"{NAME} DATA [flags]"
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(arguments)))
    if cfg.common.bf16 and not _has(arguments, "--tpu"):
        # fairseq takes bfloat16 to mean a TPU; CPUs and GPUs have it now.
        cfg.common.tpu = False
    if not _has(arguments, "--required-batch-size-multiple"):
        # With its default of 8, fairseq leaves out up to seven sentences of each set.
        cfg.dataset.required_batch_size_multiple = 1
    if cfg.common.fp16 and cfg.common.cpu:
        # fairseq expects flattened half-precision gradients on a GPU.
        cfg.common.fp16_no_flatten_grads = True
    return cfg


def _check(cfg: Any) -> None:
    """Refuse what cannot work before data and model are loaded; raises ``UserError``."""
    import torch

    from specdec_plugins.tasks.translation_lev_modified import check_settings

    require(
        not cfg.common.fp16 or cfg.common.cpu or torch.cuda.is_available(),
        "--fp16 needs a GPU, and torch finds none; omit it, or add --cpu to train in 16 bits all "
        "the same",
    )
    if getattr(cfg.task, "_name", None) == "translation_lev_modified":
        check_settings(cfg.task)
        arch = str(getattr(cfg.model, "arch", None) or getattr(cfg.model, "_name", None))
        if not arch.startswith("block"):
            raise UserError(f"--arch {arch} cannot fill masked blocks; give --arch block")
    if cfg.checkpoint.restore_file != "checkpoint_last.pt":
        expected = "a checkpoint; fairseq would train without it"
        check_file(cfg.checkpoint.restore_file, expected, "--restore-file")
    if cfg.checkpoint.finetune_from_model is not None:
        check_file(cfg.checkpoint.finetune_from_model, "a checkpoint", "--finetune-from-model")
    _check_folders(cfg)


def _check_folders(cfg: Any) -> None:
    from specdec_plugins.corpus.checkpoints import check_save_dir

    for folder in str(getattr(cfg.task, "data", None) or ".").split(os.pathsep):
        if not os.path.isdir(folder):
            raise UserError(f"{folder}: no such folder; give the one fairseq-preprocess wrote")
        if not any(Path(folder).glob("dict.*.txt")):
            raise UserError(
                f"{folder}: holds no dict.*.txt; give the folder fairseq-preprocess wrote"
            )
    check_output(cfg.checkpoint.save_dir, "--save-dir", inputs=(), folder=True)
    read = (getattr(cfg.model, "verifier_path", None), cfg.checkpoint.finetune_from_model)
    check_save_dir(Path(cfg.checkpoint.save_dir), read)


def _begin(cfg: Any, is_first: bool) -> None:
    """Fit the settings to the checkpoint that the training starts from, if there is one.

    is_first: this process may put another checkpoint in the place of a damaged one. Raises
    UserError if no checkpoint can be used, or it was trained with other dictionaries.
    """
    from specdec_plugins.corpus.checkpoints import LAST, restored
    from specdec_plugins.formats.checkpoints import load_checkpoint

    given, folder = cfg.checkpoint, Path(cfg.checkpoint.save_dir)
    path, checkpoint = folder / LAST, None
    if given.restore_file == LAST:
        checkpoint = restored(folder, is_first)
    elif given.restore_file:
        path = Path(given.restore_file)
        checkpoint = load_checkpoint(path)
    if checkpoint is None and given.finetune_from_model is not None:
        path = Path(given.finetune_from_model)
        checkpoint = load_checkpoint(path)
    _check_dictionaries(cfg, path, checkpoint)


def _check_dictionaries(cfg: Any, path: Path, checkpoint: dict[str, Any] | None) -> None:
    """Refuse to go on with other dictionaries, and have every checkpoint record those in use."""
    from omegaconf import open_dict

    from specdec_plugins.formats.dictionaries import load_dictionaries
    from specdec_plugins.formats.models import DIGESTS, TrainingRecord

    source, target = (getattr(cfg.task, f"{side}_lang", None) for side in ("source", "target"))
    both = load_dictionaries(cfg.task.data.split(os.pathsep)[0], source, target)
    if checkpoint is not None:
        TrainingRecord(checkpoint, path).check_dictionaries(both)
    with open_dict(cfg):
        cfg[DIGESTS] = both.digests
        # Without flags fairseq infers them, and a checkpoint would not say its direction.
        cfg.task.source_lang, cfg.task.target_lang = both.source_lang, both.target_lang


def _run(cfg: Any) -> None:
    import torch
    from fairseq.data.plasma_utils import PlasmaStore
    from fairseq.distributed import utils as distributed_utils

    # Held until the end: the shared memory of --use-plasma-view lives as long as its server.
    server = PlasmaStore(path=cfg.common.plasma_path) if cfg.common.use_plasma_view else None
    if cfg.common.profile:
        with torch.cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx():
            distributed_utils.call_main(cfg, _train)
    else:
        distributed_utils.call_main(cfg, _train)
    del server


def _train(cfg: Any) -> None:
    """What each process of the training runs; fairseq may have started this one.

    Raises Stopped if a signal ended it, after saving.
    """
    import torch
    from fairseq_cli import train

    from specdec_plugins.training.on_cpu import quick
    from specdec_plugins.training.trainer import Trainer

    train.Trainer = Trainer
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    faster = quick(cfg.common.bf16) if on_cpu else nullcontext()
    with faster, _saving() as told:
        train.main(cfg)
    if told:
        raise Stopped(told[0])


@contextmanager
def _saving() -> Iterator[list[int]]:
    """Make fairseq save after the current update and end, in all processes, once one of them is
    told to by ctrl-C or one of ``ENDING``; yields the signals. A second ctrl-C ends at once.
    """
    from fairseq_cli import train as loop

    told: list[int] = []
    train, validate_and_save = loop.train, loop.validate_and_save

    def tell(number: int) -> None:
        if told and number == signal.SIGINT:
            raise KeyboardInterrupt
        told.append(number)

    heeding = ExitStack()

    def train_first_epoch(*given: Any) -> Any:
        loop.train = train
        # Also between epochs; before, there is nothing to save.
        heeding.enter_context(handling(tell, (signal.SIGINT, *ENDING)))
        return train(*given)

    def save_if_told(cfg: Any, trainer: Any, *given: Any) -> Any:
        if _is_told(told, trainer):
            cfg = deepcopy(cfg)  # validating may take longer than the sender waits
            cfg.optimization.stop_time_hours, cfg.dataset.disable_validation = 1e-9, True
        return validate_and_save(cfg, trainer, *given)

    parents = [os.getpid()]  # of a process that is forked: the last of them
    # A process cannot take the hook back; what it starts afterwards is not this training's.
    os.register_at_fork(after_in_child=lambda: _obey_only_parent(parents) if parents else None)
    loop.train, loop.validate_and_save = train_first_epoch, save_if_told
    try:
        with heeding:
            yield told
    finally:
        parents.clear()
        loop.train, loop.validate_and_save = train, validate_and_save


def _is_told(told: Sequence[int], trainer: Any) -> bool:
    """Whether any process of the training is to end; all then end with the same update."""
    import torch
    from fairseq.distributed import utils as distributed_utils

    if trainer.data_parallel_world_size == 1:
        return bool(told)
    number = torch.tensor(float(bool(told)), device=trainer.device)
    distributed_utils.all_reduce(number, trainer.data_parallel_process_group)
    return bool(number)


def _obey_only_parent(parents: list[int]) -> None:
    """Spare a process that loads data from signals to all processes: saving still needs it.

    It ends with its parent, whose locks it holds; torch sees that only where it happens later on.
    """
    parent = parents[-1]
    parents.append(os.getpid())

    def wait() -> None:
        while os.getppid() == parent:
            told = signal.sigtimedwait({signal.SIGTERM}, 0.5)
            if told and told.si_pid == parent:
                break
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    Thread(target=wait, daemon=True).start()


def prepare() -> None:
    """Load fairseq and the plugin into this process."""
    import fairseq_cli.train  # first: it sets up the log that others write to

    import specdec_plugins

    for message in UNHELPFUL:
        warnings.filterwarnings("ignore", message)
    fairseq_cli.train.logger.addFilter(_is_for_users)
    specdec_plugins.register()


def _is_for_users(record: logging.LogRecord) -> bool:
    """All but the line with every setting, which LOGLEVEL=DEBUG shows."""
    return isinstance(record.msg, str) or logging.root.isEnabledFor(logging.DEBUG)


def main() -> int:
    try:
        prepare()
        arguments = command_line(sys.argv[1:], os.environ)
        cfg = _settings(arguments)
        _check(cfg)
        # Of several processes the first writes, and keeps others out of the folder.
        rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0
        is_first = not (int(rank) or cfg.distributed_training.distributed_rank)
        with locked(Path(cfg.checkpoint.save_dir)) if is_first else nullcontext():
            _begin(cfg, is_first)
            _run(cfg)
    except UserError as error:
        return refuse(NAME, error)
    except FileNotFoundError as error:
        # A part of the data is missing; fairseq notices only when it loads it.
        return refuse(NAME, f"{error}; check the data folder")
    except Exception as error:
        if not TOO_LONG.search(str(error)):
            raise
        told = "give more --max-tokens, and --max-tokens-valid if it is set"
        return refuse(NAME, f"{str(error).rstrip('.')}; {told}")
    except KeyboardInterrupt as stop:
        what, status = "interrupted", INTERRUPTED
        if isinstance(stop, Stopped):
            what, status = f"saved and ended after {stop.signal}", stop.status
        sys.stderr.write(
            f"train.py: {what}; without --restore-file and --reset-* the same command "
            "continues from the last checkpoint, if there is one\n"
        )
        return status
    return 0


if __name__ == "__mp_main__":  # imported by a process that fairseq starts
    prepare()
if __name__ == "__main__":
    sys.exit(main())
