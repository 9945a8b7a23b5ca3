"""The training demonstration: its programs know every flag of its commands and agree on files."""

from __future__ import annotations

import shlex

import pytest

from scripts import demo_train as demo
from specdec_plugins.app.main import parse_options
from tests.bundles import ROOT

FILES = ("--path", "--AR-path", "--verifier", "--finetune-from-model", "--input-path", "--bigrams")


def test_every_program_is_there_and_every_file_is_made_by_an_earlier_step() -> None:
    made = [demo.CORPUS]
    for step in demo.steps("--cpu"):
        program, script = step.words[:2]
        assert (ROOT / (script if program == demo.PYTHON else program)).is_file()
        given = dict(zip(step.words, step.words[1:], strict=False))
        for flag in FILES:
            assert flag not in given or any(given[flag].startswith(path) for path in made)
        made += step.outputs


def test_decodings_differ_in_method_alone() -> None:
    parsed = {
        name: parse_options(shlex.split(demo.decode(name, "--cpu"))[2:])[0]
        for name in demo.DECODINGS
    }
    assert [s.strategy for s in parsed.values()] == ["fairseq"] * 2 + ["AR"] + ["specdec"] * 2
    assert {s.minimum for s in parsed.values()} == {1}  # fairseq's search has no empty translation
    assert {s.batch for s in parsed.values()} == {1}
    assert parsed[demo.FAIRSEQ_GREEDY].beam == 1
    assert parsed[demo.EXACT].rule_name == "exact"
    assert parsed["SpecDec relaxed"].rule_name == "top_beta"
    assert all(s.ban_pad for s in parsed.values() if s.strategy != "fairseq")


@pytest.mark.fairseq
def test_trainings_are_commands_that_fairseq_knows() -> None:
    from fairseq import options

    import specdec_plugins

    specdec_plugins.register()
    trainings = [step for step in demo.steps("--cpu") if "train.py" in step.words]
    parsed = [
        options.parse_args_and_arch(options.get_training_parser(), input_args=step.words[2:])
        for step in trainings
    ]
    verifier, drafter = parsed
    assert (verifier.arch, drafter.arch) == ("transformer", "block_fast")
    for size in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        assert getattr(verifier, f"encoder_{size}") == getattr(drafter, f"encoder_{size}")
    assert verifier.activation_fn == drafter.activation_fn
    assert drafter.scale_encoder_embedding == (not verifier.no_scale_embedding)
    assert drafter.max_update == drafter.total_up == int(drafter.total_num_update)
