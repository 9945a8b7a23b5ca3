"""The files around the server agree with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from specdec_plugins.serving.cli import make_parser
from specdec_plugins.serving.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "specdec.json"


def exported() -> set[str]:
    """Names as they stand in queries."""
    names = set()
    for family in Metrics().registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return names


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    asked = set(re.findall(r"specdec_\w+", queries))
    assert asked <= exported()
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_metric_and_flag_is_documented() -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    families = {name.removesuffix("_bucket") for name in exported() if not name.endswith("_sum")}
    families = {name for name in families if not name.endswith("_count")}
    assert [name for name in sorted(families) if f"`{name}" not in text] == []
    # pylint would call these private; argparse has no other list of its flags.
    flags = {flag for action in make_parser()._actions for flag in action.option_strings}
    flags = {flag for flag in flags if flag.startswith("--") and not flag.startswith("--no-")}
    assert [flag for flag in sorted(flags - {"--help"}) if f"`{flag}" not in text] == []
