"""fairseq's memory-mapped sentences, NAME.bin and NAME.idx, read and written without fairseq."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from specdec_plugins.errors import UserError

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_HEADER = struct.Struct("<9sQBQ")  # with the kind of numbers, and how many sentences there are
_KINDS = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 8: "u2", 9: "u4", 10: "u8"}
_FEW = 65_500  # types; ids of fewer are stored in 16 bits


class Sentences(Sequence[Tensor]):
    """Token ids of each sentence, [n] int64. Raises UserError if the files cannot be read."""

    def __init__(self, stem: str | Path) -> None:
        """stem: the path without .bin or .idx."""
        try:
            index = Path(f"{stem}.idx").read_bytes()
            magic, version, kind, count = _HEADER.unpack_from(index)
            if (magic, version) != (_MAGIC, _VERSION):
                raise ValueError
            self.sizes = numpy.frombuffer(index, "<i4", count, _HEADER.size)
            starts = numpy.frombuffer(index, "<i8", count, _HEADER.size + self.sizes.nbytes)
            dtype = numpy.dtype(_KINDS[kind])
            self._starts = starts // dtype.itemsize
            whole = Path(f"{stem}.bin").stat().st_size
            self._ids: Any = numpy.memmap(f"{stem}.bin", dtype, "r") if whole else []
            if whole != self.sizes.sum() * dtype.itemsize:
                raise ValueError
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, struct.error):
            raise UserError(
                f"{stem}.idx: damaged, or not in fairseq's mmap format; binarise the text again"
            ) from None

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: Any) -> Any:
        start = self._starts[index]
        return torch.from_numpy(self._ids[start : start + self.sizes[index]].astype(numpy.int64))


class SentenceWriter(AbstractContextManager["SentenceWriter"]):
    """Writes sentences one by one; they can be read when the block has ended."""

    def __init__(self, stem: str | Path, num_types: int) -> None:
        self._stem, self._kind = stem, 8 if num_types < _FEW else 9
        self._file = Path(f"{stem}.bin").open("wb")  # noqa: SIM115 - closed on exit
        self._sizes: list[int] = []

    def add(self, ids: Sequence[int] | Tensor) -> None:
        self._file.write(numpy.asarray(ids, dtype=_KINDS[self._kind]).tobytes())
        self._sizes.append(len(ids))

    def __exit__(self, *_: object) -> None:
        self._file.close()
        sizes = numpy.array(self._sizes, "<i8")
        starts = (sizes.cumsum() - sizes) * numpy.dtype(_KINDS[self._kind]).itemsize
        header = _HEADER.pack(_MAGIC, _VERSION, self._kind, len(sizes))
        data = header + sizes.astype("<i4").tobytes() + starts.astype("<i8").tobytes()
        Path(f"{self._stem}.idx").write_bytes(data)
