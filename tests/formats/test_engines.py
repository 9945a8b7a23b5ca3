"""Converted verifiers give the same logits and the same tokens in transformers and CTranslate2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.exports import export_ctranslate2, export_marian, load_marian
from specdec_plugins.formats.models import read_model_of, to_checkpoint
from specdec_plugins.formats.text import TextPipeline
from tests import fairseq_checkpoints
from tests.bundles import captions
from tests.decoding.networks.toys import full_logits
from tests.fairseq_checkpoints import LEARNED, PRE_NORM
from tests.programs import convert_main as main
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

BOS, PAD, EOS = 0, 1, 2
SENTENCES = [
    "Two dogs run across the grass.",
    "A man in a red shirt is climbing a wall.",
    "Children are playing in front of a large brick building.",
    "A woman with a blue umbrella waits for the bus.",
    "An old man sits on a bench and reads a newspaper.",
    "Three people stand beside a boat at the river.",
    "A boy jumps into the water.",
    "The girl in the yellow dress is painting a picture of her brother.",
]
BOTH: dict[str, dict[str, Any]] = {
    "shared": {"share_all_embeddings": True},
    "separate": {},
    "tied output": {"share_decoder_input_output_embed": True, "activation_fn": "gelu"},
    "learned": {**LEARNED, "activation_fn": "gelu_accurate"},
    "unscaled": {"no_scale_embedding": True, "decoder_layers": 3},
    "no positions": {"no_token_positional_embeddings": True},
    "not fairseq's": {"of_transformers": True},
}
CTRANSLATE2_ONLY: dict[str, dict[str, Any]] = {
    "pre-norm": {**PRE_NORM, "share_all_embeddings": True},
    "one pre-norm": {"decoder_normalize_before": True},
    "no final norm": {**PRE_NORM, "no_decoder_final_norm": True},
    "embedding norm": {"layernorm_embedding": True},
}


def small(tmp_path: Path, of_transformers: bool = False, **shape: Any) -> tuple[Model, Any]:
    """A random verifier in single precision, and its dictionaries.

    of_transformers: it has what fairseq's models do not have, and starts with another token.
    """
    folder = fairseq_checkpoints.dictionaries(tmp_path)
    args = fairseq_checkpoints.settings("transformer", **shape)
    network = fairseq_checkpoints.build(args, folder).float()
    path = fairseq_checkpoints.save(network, args, folder / "verifier.pt")
    dictionaries = load_dictionaries(folder, "en", "de")
    model = read_model_of(Transformer, path, dictionaries.source, dictionaries.target)
    if not of_transformers:
        return model, dictionaries
    dictionaries.target.start = BOS
    bias = torch.randn(len(dictionaries.target), generator=torch.Generator().manual_seed(1))
    config = replace(model.config, activation="swish", output_bias=True)
    state = {**model.state, "decoder.output_projection.bias": bias}
    return replace(model, config=config, state=state), dictionaries


def logits(model: Model, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Ours in double precision, which are fairseq's: tests/decoding/networks."""
    network = model.network(torch.float64, torch.device("cpu"))
    assert isinstance(network, Transformer)
    with torch.inference_mode():
        return full_logits(network, source, target)


@pytest.mark.parametrize("shape", BOTH.values(), ids=BOTH)
def test_marian_has_equal_logits(shape: dict[str, Any], tmp_path: Path) -> None:
    model, dictionaries = small(tmp_path, **shape)
    folder = export_marian(model, dictionaries, tmp_path / "marian")
    source = torch.tensor([[5, 9, 17, 8, 30, EOS], [11, 6, EOS, PAD, PAD, PAD]])
    target = torch.tensor([[EOS, 7, 8, 9, 21], [EOS, 33, 12, 5, 5]])
    with torch.inference_mode():
        got = load_marian(folder, torch.float64)(
            input_ids=source, attention_mask=source != PAD, decoder_input_ids=target
        ).logits
    started = load_marian(folder).generation_config.decoder_start_token_id
    assert started == dictionaries.target.start
    # Both compute in double precision from the same single-precision weights and positions.
    torch.testing.assert_close(got, logits(model, source, target), rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", {**BOTH, **CTRANSLATE2_ONLY}.values(), ids=lambda s: str(s))
def test_ctranslate2_has_equal_probabilities(shape: dict[str, Any], tmp_path: Path) -> None:
    import ctranslate2

    model, dictionaries = small(tmp_path, **shape)
    folder = export_ctranslate2(model, dictionaries, tmp_path / "ct2")
    engine = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    sources, targets = [[5, 9, 17, 8, 30], [11, 6]], [[7, 8, 9, 21], [33, 12, 5, 6]]
    symbols = dictionaries.source.symbols
    scored = engine.score_batch(
        [[symbols[i] for i in ids] for ids in sources],
        [[dictionaries.target.symbols[i] for i in ids] for ids in targets],
    )
    source = torch.tensor([[5, 9, 17, 8, 30, EOS], [11, 6, EOS, PAD, PAD, PAD]])
    target = torch.tensor([[dictionaries.target.start, *ids] for ids in targets])
    answers = torch.tensor([[*ids, EOS] for ids in targets])
    wanted = logits(model, source, target).log_softmax(-1).gather(2, answers[..., None])[..., 0]
    got = torch.tensor([result.log_probs for result in scored], dtype=torch.float64)
    # It computes in single precision, with other kernels; these logits are tens of nats apart.
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=2e-4)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captions(tmp_path_factory.mktemp("models") / "captions")


@pytest.fixture(scope="module")
def expected(bundle: Path) -> list[list[str]]:
    """Target tokens of our greedy decoding, eos left out."""
    translator = SpeculativeTranslator.from_pretrained(str(bundle), strategy="AR", device="cpu")
    return [translation.tokens for translation in translator.translate(SENTENCES)]


@pytest.fixture(scope="module")
def sources(bundle: Path) -> list[str]:
    """BPE text."""
    text = TextPipeline("en", "de", codes=bundle / "bpe.codes")
    return [text.encode(line) for line in SENTENCES]


def test_marian_says_the_same(
    bundle: Path, sources: list[str], expected: list[list[str]], tmp_path: Path
) -> None:
    assert main(["marian", str(bundle), "--output", str(tmp_path / "marian")]) == 0
    model = load_marian(tmp_path / "marian")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / "marian"))
    target = load_dictionaries(bundle, "en", "de").target
    batch = tokenizer(sources, padding=True, return_tensors="pt")
    assert batch.input_ids[0].tolist()[: len(sources[0].split()) + 1] == target.encode_line(
        sources[0]
    )
    found = model.generate(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    texts = [target.string(i for i in row if i != PAD) for row in found.tolist()]
    assert texts == list(map(" ".join, expected))


def test_the_bundled_pair_comes_back_from_marian_with_the_same_words(tmp_path: Path) -> None:
    """Raw text in and out: the folder keeps how the pair reads text."""
    pair = Path("data/models/en-de-small")
    samples = Path("data/samples/en-de.tsv").read_text().splitlines()[::3]
    lines = [line.split("\t")[0] for line in samples]
    assert main(["marian", str(pair), "--output", str(tmp_path / "marian")]) == 0
    assert main(["bundle", str(tmp_path / "marian"), "--output", str(tmp_path / "again")]) == 0
    expected, *others = (
        [
            str(translation)
            for translation in SpeculativeTranslator.from_pretrained(
                str(folder), strategy="AR", device="cpu", batch=16, scores=False
            ).translate(lines)
        ]
        for folder in (pair, tmp_path / "marian", tmp_path / "again")
    )
    assert others == [expected, expected]


def test_its_own_converter_writes_the_same_file(bundle: Path, tmp_path: Path) -> None:
    from ctranslate2.converters import FairseqConverter

    from specdec_plugins.formats.checkpoints import allow_fairseq_checkpoints

    dictionaries = load_dictionaries(bundle, "en", "de")
    model = read_model_of(
        Transformer, bundle / "verifier.safetensors", dictionaries.source, dictionaries.target
    )
    export_ctranslate2(model, dictionaries, tmp_path / "ours")
    save_checkpoint(to_checkpoint(model, "en", "de"), tmp_path / "verifier.pt")
    allow_fairseq_checkpoints()
    FairseqConverter(str(tmp_path / "verifier.pt"), str(bundle)).convert(str(tmp_path / "theirs"))
    for path in (tmp_path / "theirs").iterdir():
        assert path.read_bytes() == (tmp_path / "ours" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (PRE_NORM, "MarianMT cannot express norms before each layer"),
        ({"layernorm_embedding": True}, "MarianMT cannot express a norm of the embeddings"),
        ({"decoder_output_dim": 12}, "MarianMT cannot express encoder, decoder and embeddings of"),
    ],
)
def test_marian_refuses_by_name(shape: dict[str, Any], message: str, tmp_path: Path) -> None:
    model, dictionaries = small(tmp_path, **shape)
    refused(message, export_marian, model, dictionaries, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ctranslate2_refuses_by_name(tmp_path: Path) -> None:
    model, dictionaries = small(tmp_path)
    assert model.config is not None
    changes: list[tuple[dict[str, Any], str]] = [
        ({"activation": "relu_squared"}, "the activation relu_squared"),
        ({"decoder_output_dim": 12}, "a decoder whose embeddings have a different width"),
        ({"encoder": replace(model.config.encoder, final_norm=True)}, "a norm after the last enc"),
    ]
    for change, message in changes:
        odd = replace(model, config=replace(model.config, **change))
        sentence = f"CTranslate2 cannot express {message}"
        refused(sentence, export_ctranslate2, odd, dictionaries, tmp_path / "out")
    assert not (tmp_path / "out").exists()
