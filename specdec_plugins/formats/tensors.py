"""Tensors in files of safetensors and of torch, most of them read when they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdec_plugins.decoding.networks.reading import Parts, Rows, Unread
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.checkpoints import load_safely, not_finite

SAFE, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
_MAPPED = 32 << 20  # bytes of a file that may be mapped before it is closed
_Opened = tuple[dict[str, tuple[int, ...]], Callable[[str], Tensor], dict[str, str]]


class StoredTensors:
    """The tensors of some files. One is open at a time, for a while: what it maps is in memory."""

    def __init__(self, files: Sequence[Path], finite: bool = False) -> None:
        """finite: refuse NaN and infinity where they are read."""
        self.metadata: dict[str, str] = {}  # of the last file
        self._files, self._finite = files, finite
        self._opened: tuple[Path, Callable[[str], Tensor]] | None = None
        self._num_read = 0  # bytes, since it was opened

    def parts(self) -> Parts:
        """Vectors, and larger tensors that are still to be read.

        Raises UserError for a file that is damaged or holds something else; so does reading.
        """
        found: Parts = {}
        for file in self._files:
            for name, shape in self._open(file).items():
                read, origin = partial(self._read, file, name), (file.resolve(), name)
                unread = Unread(shape, read, read, origin)
                found[name] = read().clone() if len(shape) < 2 else unread
        return found

    def _open(self, file: Path) -> dict[str, tuple[int, ...]]:
        """Open a file; returns the shapes of its tensors."""
        self._opened, self._num_read = None, 0
        is_safe = file.suffix == Path(SAFE).suffix
        shapes, tensors, self.metadata = (_open_safetensors if is_safe else _open_pickled)(file)
        self._opened = (file, tensors)
        return shapes

    def _read(self, file: Path, name: str, rows: Rows | None = None) -> Tensor:
        """A tensor, or some of its rows; what is not used of it is not even mapped."""
        if self._opened is None or self._opened[0] != file or self._num_read > _MAPPED:
            self._open(file)
        assert self._opened is not None
        tensor = self._opened[1](name)
        tensor = tensor if rows is None else tensor[rows]
        self._num_read += tensor.nbytes
        require(
            not self._finite or not_finite({name: tensor}) is None,
            f"{file}: is damaged ({name} holds values that are NaN or infinite); copy it again.",
        )
        return tensor


def _open_safetensors(path: Path) -> _Opened:
    try:
        file = safe_open(path, framework="pt")
        shapes = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
        return shapes, file.get_tensor, file.metadata() or {}
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error}); download or copy it again."
        ) from error
    except SafetensorError as error:
        raise UserError(f"{path}: is damaged ({error}); download or copy it again.") from error


def _open_pickled(path: Path) -> _Opened:
    state = load_safely(path, mmap=is_zipfile(path))  # files of before 2020 cannot be mapped
    require(
        isinstance(state, dict) and all(isinstance(t, Tensor) for t in state.values()),
        f"{path}: holds something other than weights; give a model that transformers has saved.",
    )
    return {name: tuple(tensor.shape) for name, tensor in state.items()}, state.__getitem__, {}
