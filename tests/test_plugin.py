"""Registration with fairseq, each way of loading the plugin in a process of its own."""

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

NO_FAIRSEQ = """
import sys
import specdec_plugins
loaded = [n for n in sys.modules if n.split(".")[0] in ("fairseq", "torch", "omegaconf")]
assert not loaded, loaded
"""

BY_HAND = "specdec_plugins.register()\n" * 2

USER_DIR = """
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir="specdec_plugins"))
"""

FAIRSEQ_FIRST = "import fairseq, specdec_plugins\n"
CORE_FIRST = "import fairseq, specdec_plugins.errors\n"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(NO_FAIRSEQ, id="import alone loads nothing"),
        pytest.param(NO_FAIRSEQ + BY_HAND + CHECK, id="register by hand, twice"),
        pytest.param(USER_DIR + CHECK, id="--user-dir"),
        pytest.param(FAIRSEQ_FIRST + CHECK, id="imported after fairseq"),
        pytest.param(CORE_FIRST + USER_DIR + CHECK, id="--user-dir after an import"),
    ],
)
def test_registration(script: str) -> None:
    python("-c", script)
