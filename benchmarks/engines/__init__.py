"""One file an engine: everything that can translate with the verifier's weights.

Adding one is a file with a function `load(job: Job, threads: int) -> Engine`, named here.
"""

from __future__ import annotations

import importlib

from benchmarks.engines.base import Engine, Job

ENGINES = ("ctranslate2", "fairseq", "ours", "published", "transformers")


def load(job: Job, threads: int) -> Engine:
    """The engine that the row names; only then are its packages imported."""
    assert job.row.engine in ENGINES
    engine: Engine = importlib.import_module(f"benchmarks.engines.{job.row.engine}").load(
        job, threads
    )
    return engine
