"""The verifier's weights in the formats of the peers, written once before the engines start."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from benchmarks.engines.base import Job
from benchmarks.pair import Pair
from specdec_plugins.formats.ctranslate2 import export_ctranslate2
from specdec_plugins.formats.marian import export_marian
from specdec_plugins.formats.model_files import read_verifier

CTRANSLATE2, MARIAN, ASSISTANT = "ctranslate2", "marian", "marian-assistant"


def converted(form: str, job: Job) -> Path:
    """Where `convert` has put the model."""
    return Path(job.work) / form


def convert(pair: Pair, forms: Iterable[str], work: Path) -> None:
    """Write each form anew, as `work/<form>`; the peers' own precisions are made when they load."""
    dictionaries = pair.dictionaries()
    for form in forms:
        folder = work / form
        shutil.rmtree(folder, ignore_errors=True)
        path = pair.assistant if form == ASSISTANT else pair.verifier
        assert path is not None
        export = export_ctranslate2 if form == CTRANSLATE2 else export_marian
        export(read_verifier(path, dictionaries), dictionaries, folder)
