"""Converts a MarianMT folder to CTranslate2, by CTranslate2's own converter for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_plugins.errors import imported
from specdec_plugins.formats.exports import import_transformers, load_marian


def to_ctranslate2(model: str | Path, folder: Path) -> None:
    """Write the folder in float32. Raises UserError if ctranslate2 is not installed.

    The converter assumes two properties of OPUS-MT: targets begin with an embedding of zeros, and
    the last symbol is padding. A model that was exported from fairseq has neither, so it is read by
    the same converter's loader of BART, on which MarianMT's is based.
    """
    transformers = import_transformers()
    found = imported("ctranslate2.converters.transformers", "convert")
    network: Any = load_marian(model)
    start = network.get_input_embeddings().weight[network.config.decoder_start_token_id]
    converter = found.TransformersConverter(str(model))
    if start.any():
        read = _plain_loader(found)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(model))
        converter._load = lambda: read(network, tokenizer)
    converter.convert(str(folder), force=True)


def _plain_loader(found: Any) -> Any:
    """The MarianMT loader without the peculiarities of OPUS-MT."""

    class Loader(found.MarianMTLoader):
        set_config, set_decoder = found.BartLoader.set_config, found.BartLoader.set_decoder
        get_vocabulary = found.BartLoader.get_vocabulary

        def _remove_pad_weights(self, spec: Any) -> None:
            """Padding stays where it is."""

    return Loader()
