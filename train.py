"""Train with fairseq and this plugin; the flags are those of fairseq-train.

Unlike fairseq-train, it trains in several processes under torch's launcher (``torchrun
--nproc-per-node 2 train.py ...``) on CPUs too, and in bfloat16 on GPUs and CPUs (``--bf16``), and
refuses impossible settings before any model is built.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from threading import Thread
from typing import Any

from specdec_plugins.corpus.reading import check_file
from specdec_plugins.errors import ENDING, INTERRUPTED, Parser, Stopped, UserError, handling, refuse
from specdec_plugins.formats.output import check_output

NAME = "train.py"
PLUGIN = Path(__file__).resolve().parent / "specdec_plugins"


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

    parser = options.get_training_parser()
    # Listing fairseq's hundreds of flags would bury the message about one of them.
    parser.__class__ = Parser
    parser.prog, parser.usage = NAME, f"{NAME} DATA [flags]"
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(arguments)))
    if cfg.common.bf16 and not _has(arguments, "--tpu"):
        # fairseq takes bfloat16 to mean a TPU; CPUs and GPUs have it now.
        cfg.common.tpu = False
    _as_restored(cfg, arguments)
    if cfg.common.fp16 and cfg.common.cpu:
        # fairseq expects flattened half-precision gradients on a GPU.
        cfg.common.fp16_no_flatten_grads = True
    return cfg


def _as_restored(cfg: Any, arguments: Sequence[str]) -> None:
    """Unless told otherwise, a resumed block drafter keeps its head, or stays without one.

    ``--arch block_fast`` had no head at first, then one that did not read the source. Such
    checkpoints still resume.
    """
    from specdec_plugins.decoding.networks.block import head_width
    from specdec_plugins.formats.checkpoints import load_checkpoint

    path = Path(cfg.checkpoint.save_dir, cfg.checkpoint.restore_file)
    head = getattr(cfg.model, "sequential_head", None)
    if head is None or _has(arguments, "--sequential-head") or not path.is_file():
        return
    weights = load_checkpoint(str(path))["model"]
    cfg.model.sequential_head = head_width(weights)
    if "decoder.head.context.weight" not in weights:
        cfg.model.head_attention = 0


def _check(cfg: Any) -> None:
    """Refuse what cannot work before data and model are loaded; raises ``UserError``."""
    from specdec_plugins.formats.checkpoints import load_checkpoint
    from specdec_plugins.tasks.translation_lev_modified import check_settings

    if getattr(cfg.task, "_name", None) == "translation_lev_modified":
        check_settings(cfg.task)
        if cfg.task.verifier_path is not None:
            check_file(cfg.task.verifier_path, "a checkpoint", "--verifier-path")
        arch = str(getattr(cfg.model, "arch", None) or getattr(cfg.model, "_name", None))
        if not arch.startswith("block"):
            raise UserError(f"--arch {arch} cannot fill masked blocks; give --arch block")
    restored = cfg.checkpoint.restore_file
    if restored != "checkpoint_last.pt":
        expected = "a checkpoint; fairseq would train without it"
        check_file(restored, expected, "--restore-file")
    for path in (restored, cfg.checkpoint.finetune_from_model):
        if path is not None and path != "checkpoint_last.pt":
            load_checkpoint(path)  # raises a clear error if it is bad
    _check_folders(cfg)
    _check_dictionaries(cfg)


def _check_dictionaries(cfg: Any) -> None:
    """Refuse to go on with other dictionaries, and have every checkpoint record those in use."""
    from omegaconf import open_dict

    from specdec_plugins.formats.checkpoints import load_checkpoint
    from specdec_plugins.formats.dictionaries import load_dictionaries
    from specdec_plugins.formats.models import DIGESTS, TrainingRecord

    languages = [getattr(cfg.task, f"{side}_lang", None) for side in ("source", "target")]
    both = load_dictionaries(cfg.task.data.split(os.pathsep)[0], *languages)
    restored, start = cfg.checkpoint.restore_file, cfg.checkpoint.finetune_from_model
    if restored == "checkpoint_last.pt":
        restored = os.path.join(cfg.checkpoint.save_dir, restored)
    for path in (Path(restored), *([Path(start)] if start else [])):
        if path.is_file():
            TrainingRecord(load_checkpoint(path), path).check_dictionaries(both)
    with open_dict(cfg):
        cfg[DIGESTS] = both.digests


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
    read = (getattr(cfg.task, "verifier_path", None), cfg.checkpoint.finetune_from_model)
    check_save_dir(Path(cfg.checkpoint.save_dir), read)


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

    from specdec_plugins.training.on_cpu import quick_bfloat16
    from specdec_plugins.training.trainer import Trainer

    train.Trainer = Trainer
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    faster = quick_bfloat16() if on_cpu and cfg.common.bf16 else nullcontext()
    with faster, _saving() as told:
        train.main(cfg)
    if told:
        raise Stopped(told[0])


@contextmanager
def _saving() -> Iterator[list[int]]:
    """Make fairseq save after the current update and end, in all processes, once one of them is
    told to by ctrl-C or one of ``ENDING``; yields the signals. A second ctrl-C ends at once.
    """
    import torch
    from fairseq.distributed import utils as distributed_utils
    from fairseq_cli import train as loop

    told: list[int] = []
    train, validate_and_save = loop.train, loop.validate_and_save

    def tell(number: int) -> None:
        if told and number == signal.SIGINT:
            raise KeyboardInterrupt
        told.append(number)

    def train_an_epoch(*given: Any) -> Any:
        with handling(tell, (signal.SIGINT, *ENDING)):  # before, there is nothing to save
            return train(*given)

    def save_if_told(cfg: Any, trainer: Any, *given: Any) -> Any:
        is_told = bool(told)
        if trainer.data_parallel_world_size > 1:  # all must end with the same update
            number = torch.tensor(float(is_told), device=trainer.device)
            distributed_utils.all_reduce(number, trainer.data_parallel_process_group)
            is_told = bool(number)
        if is_told:
            cfg = deepcopy(cfg)  # validating may take longer than the sender waits
            cfg.optimization.stop_time_hours, cfg.dataset.disable_validation = 1e-9, True
        return validate_and_save(cfg, trainer, *given)

    os.register_at_fork(after_in_child=_obey_only_parent)
    loop.train, loop.validate_and_save = train_an_epoch, save_if_told
    try:
        yield told
    finally:
        loop.train, loop.validate_and_save = train, validate_and_save


def _obey_only_parent() -> None:
    """Spare a process that loads data from signals to all processes: saving still needs it."""

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    Thread(target=wait, daemon=True).start()


def _prepare() -> None:
    """Load fairseq and the plugin into this process."""
    import fairseq_cli.train  # noqa: F401  (first: it sets up the log that others write to)

    import specdec_plugins

    # hydra's warnings are for fairseq's authors; users cannot act on them.
    warnings.filterwarnings("ignore", message=r"(?s).*(hydra\.cc|hydra\.experimental)")
    warnings.filterwarnings("ignore", message=r"\s*The version_base parameter is not specified")
    specdec_plugins.register()


def main() -> int:
    try:
        _prepare()
        cfg = _settings(command_line(sys.argv[1:], os.environ))
        _check(cfg)
        _run(cfg)
    except UserError as error:
        return refuse(NAME, error)
    except FileNotFoundError as error:
        # A part of the data is missing; fairseq notices only when it loads it.
        return refuse(NAME, f"{error}; check the data folder")
    except KeyboardInterrupt as stop:
        what, status = "interrupted", INTERRUPTED
        if isinstance(stop, Stopped):
            what, status = f"saved and ended after {stop.signal}", stop.status
        print(
            f"train.py: {what}; without --restore-file and --reset-* the same command "
            "continues from the last checkpoint",
            file=sys.stderr,
        )
        return status
    return 0


if __name__ == "__mp_main__":  # imported by a process that fairseq starts
    _prepare()
if __name__ == "__main__":
    sys.exit(main())
