"""Registration with fairseq, however the plugin is loaded."""

from __future__ import annotations

import pytest

from tests.programs import python

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

CHECK = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
names = [n for n in ("block", "block_6e6d512", "block_base") if n in ARCH_MODEL_REGISTRY]
assert len(names) == 3, names
assert {"early_exit_transformer", "medusa_heads"} <= set(ARCH_MODEL_REGISTRY)
assert {"glat_loss", "early_exit_loss", "medusa_loss"} <= set(CRITERION_REGISTRY)
assert "translation_lev_modified" in TASK_REGISTRY
"""

BY_HAND = """
import sys
import specdec_plugins
loaded = [n for n in sys.modules if n.split(".")[0] in ("fairseq", "torch", "omegaconf")]
assert not loaded, loaded
specdec_plugins.register()
specdec_plugins.register()
"""

USER_DIR = """
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir="specdec_plugins"))
"""
AFTER_FAIRSEQ = ["import specdec_plugins", USER_DIR, f"import specdec_plugins.errors{USER_DIR}"]
# Each in a process of its own, for which fairseq need not be imported anew.
FORKING = """
import os, sys
import fairseq
for script in sys.argv[1:]:
    if os.fork() == 0:
        exec(script)
        break
    assert os.wait()[1] == 0, script
"""


def test_an_import_alone_loads_nothing_and_it_can_be_registered_by_hand() -> None:
    python("-c", BY_HAND + CHECK)


def test_what_is_imported_after_fairseq_registers() -> None:
    """By itself, as a user directory, and as one that was imported before."""
    python("-c", FORKING, *(f"{script}\n{CHECK}" for script in AFTER_FAIRSEQ))
