"""Folders as transformers has them; tokenizers are trained on a thousand lines of seven scripts."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.formats.exports import import_transformers
from specdec_plugins.formats.pretrained.languages import published

SAMPLES = Path(__file__).parents[3] / "data" / "samples" / "en-de.tsv"
# First and last letter, and what ends a sentence, of scripts beside Latin.
SCRIPTS = {
    "Cyrillic": ("а", "я", "."),
    "Greek": ("α", "ω", ";"),
    "Arabic": ("ا", "ي", "؟"),
    "Devanagari": ("अ", "ह", "।"),
    "Han": ("一", "亀", "。"),
    "Hangul": ("가", "깋", "."),
}
EDGES = [
    "",
    " ",
    "   two  spaces  and a tail  ",
    "tab\tand\u00a0no-break\u3000wide",
    "control \x01\x02\x7f and \u200b zero width \u200d joiner",
    "e\u0301 or \u00e9, ﬁ ligature, ｆｕｌｌ ｗｉｄｔｈ, ① ½ ™",
    "emoji 😀👩‍👩‍👧 and flags 🇩🇪",
    "unknown \u16a0\u16a2\u16a6 runes \U0001033c and \ufffd",
    "</s> <unk> <pad> <s> <mask> in a text",
    "ends in </s>",
    "▁ its own underline ▁▁",
    "newline\nin\r\na text",
    "...!?,;:-_()[]{}<>>><<<",
    "a" * 3000,
    "word " * 700,
    "ÄÖÜäöüß ÇĞİŞ Ǆ ŉ",
    "1,234,567.89 € 50%",
    "don 't do n't , please . Is it 's ? ' quoted '",
]


def lines_of(count: int = 1000) -> list[str]:
    """Lines of seven scripts, the same in every run: the project's samples, and made-up words."""
    rng = random.Random(7)
    samples = [half for line in SAMPLES.read_text().splitlines() for half in line.split("\t")]
    words = {name: _words(rng, first, last) for name, (first, last, _) in SCRIPTS.items()}
    lines = []
    for number in range(count):
        name = (None, *SCRIPTS)[number % 7]
        if name is None:
            lines.append(samples[number // 7 % len(samples)])
            continue
        joined = "" if name == "Han" else " "
        text = joined.join(rng.choices(words[name], k=rng.randint(2, 12)))
        lines.append(text + SCRIPTS[name][2])
    return lines


def _words(rng: random.Random, first: str, last: str) -> list[str]:
    letters = [chr(code) for code in range(ord(first), ord(last) + 1) if chr(code).isalpha()]
    letters = rng.sample(letters, min(len(letters), 40))
    syllables = ["".join(rng.choices(letters, k=rng.randint(1, 2))) for _ in range(60)]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(150)]


def train_spm(lines: Iterable[str], size: int, kind: str, **more: Any) -> bytes:
    """A sentencepiece model; one that has not seen all characters of the lines."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        character_coverage=0.999,
        minloglevel=2,
        num_threads=1,
        **more,
    )
    return model.getvalue()


def pieces(spm: bytes) -> list[str]:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_proto=spm)
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False))


def marian_files(
    folder: Path, lines: Sequence[str], languages: Sequence[str] = (), separate: bool = False
) -> None:
    """MarianMT's, as on the hub. languages: whose tokens a source may begin with."""
    # transformers knows one id of <pad> alone, so two vocabularies are equally large.
    size = 700 if separate else 800
    spms = [train_spm(lines[i::2], num, "unigram") for i, num in enumerate((700, size))]
    for name, spm in zip(("source", "target"), spms, strict=True):
        (folder / f"{name}.spm").write_bytes(spm)
    codes = [f">>{language}<<" for language in languages]
    sides = [pieces(spms[0]), pieces(spms[1])]
    if not separate:
        sides = [[*dict.fromkeys(sides[0] + sides[1])]]
    for name, side in zip(("vocab", "target_vocab"), sides, strict=False):
        known = [piece for piece in side if piece not in ("<s>", "</s>", "<unk>")]
        symbols = ["</s>", "<unk>", *known, *codes, "<pad>"]
        write_json(folder / f"{name}.json", {s: i for i, s in enumerate(symbols)})
    settings = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "MarianTokenizer"})


def m2m_files(folder: Path, lines: Sequence[str], codes: Sequence[str]) -> None:
    """M2M-100's, as on the hub. codes: all languages of the model, in its order."""
    spm = train_spm(lines, 900, "bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(spm)
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *pieces(spm)[3:]]
    write_json(folder / "vocab.json", {s: i for i, s in enumerate(symbols)})
    special = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    special |= {"unk_token": "<unk>", "pad_token": "<pad>"}
    more = {"additional_special_tokens": [f"__{code}__" for code in codes]}
    write_json(folder / "special_tokens_map.json", special | more)
    settings = {"src_lang": None, "tgt_lang": None, "language_codes": "m2m100"}
    settings |= {"tokenizer_class": "M2M100Tokenizer", **special}
    write_json(folder / "tokenizer_config.json", settings)


def spm_files(folder: Path, lines: Sequence[str], name: str, kind: str, **more: Any) -> None:
    """Of NLLB and mBART as they were first published: one sentencepiece model."""
    (folder / "sentencepiece.bpe.model").write_bytes(train_spm(lines, 900, kind))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": name, **more})


def nllb_files(folder: Path, lines: Sequence[str], codes: Sequence[str], **more: Any) -> None:
    """NLLB's, with the ids of its added tokens."""
    added = {901 + i: code for i, code in enumerate((*codes, "<mask>"))}
    tokens = {i: {"content": t, "special": True, "lstrip": t == "<mask>"} for i, t in added.items()}
    spm_files(folder, lines, "NllbTokenizer", "bpe", added_tokens_decoder=tokens, **more)


_T5_PIECES = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_MADLAD_PIECES = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}


def t5_files(folder: Path, lines: Sequence[str], codes: Sequence[str] = (), **more: Any) -> None:
    """T5's, or, with the codes of its target languages, MADLAD-400's."""
    which: dict[str, Any] = {**_T5_PIECES}
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, **more}
    if codes:
        which = {**_MADLAD_PIECES, "user_defined_symbols": [f"<2{code}>" for code in codes]}
        settings |= {"extra_ids": 0, "pad_token": "<s>", "additional_special_tokens": []}
    (folder / "spiece.model").write_bytes(train_spm(lines, 900, "unigram", **which))
    write_json(folder / "tokenizer_config.json", settings)


def byt5_files(folder: Path, lines: Sequence[str]) -> None:
    """ByT5's: it has no vocabulary."""
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"})


def bart_files(folder: Path, lines: Sequence[str]) -> None:
    """BART's, as on the hub: a vocabulary of bytes and its merges."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(lines, 1000, special_tokens=[*special, "<mask>"])
    tokenizer.save_model(str(folder))
    write_json(folder / "tokenizer_config.json", {"model_max_length": 1024})


def add_model(folder: Path, model_type: str, **more: Any) -> None:
    """A small random model of transformers for a tokenizer's files; more: of its configuration."""
    transformers = import_transformers()
    config = transformers.AutoConfig.for_model
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, config=config(model_type))
    pad, eos, num_source = tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)
    settings = {"pad_token_id": pad, "eos_token_id": eos, "vocab_size": num_source, "d_model": 32}
    if model_type == "t5":
        settings |= {"d_kv": 12, "d_ff": 48, "num_heads": 3, "num_layers": 2}
        settings |= {"decoder_start_token_id": 0}
    else:
        stacks = {"layers": 2, "ffn_dim": 48, "attention_heads": 4}
        settings |= {f"{s}_{n}": v for s in ("encoder", "decoder") for n, v in stacks.items()}
        settings |= {"max_position_embeddings": 128, "init_std": 0.3}
    if model_type == "marian":
        num_target = len(getattr(tokenizer, "target_encoder", ())) or num_source
        settings |= {"decoder_start_token_id": pad, "bad_words_ids": [[pad]]}
        settings |= {"forced_eos_token_id": eos, "activation_function": "swish"}
        settings |= {"scale_embedding": True, "decoder_vocab_size": num_target}
        settings |= {"share_encoder_decoder_embeddings": num_source == num_target}
    settings |= {"max_length": 24, **more}
    own = ("max_length", "min_length", "no_repeat_ngram_size", "bad_words_ids")
    own += ("forced_bos_token_id", "forced_eos_token_id", "num_beams")
    generation = {k: settings.pop(k) for k in own if k in settings}
    with torch.random.fork_rng(devices=[]):  # transformers takes no generator
        torch.manual_seed(0)
        made = config(model_type, **settings)
        model = transformers.AutoModelForSeq2SeqLM.from_config(made).eval()
    if model_type == "t5":
        for parameter in model.parameters():  # else every position says the same
            parameter.data *= 1.5 if parameter.dim() > 1 else 1.0
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)


def _saved(write: Any, cls: str) -> Any:
    """With the `tokenizer.json` that transformers makes of the files."""

    def written(folder: Path, lines: Sequence[str], *more: Any) -> None:
        write(folder, lines, *more)
        tokenizer = getattr(import_transformers(), cls)
        tokenizer.from_pretrained(folder).save_pretrained(folder)

    return written


_SUMMARY = {"forced_bos_token_id": 0, "no_repeat_ngram_size": 3, "min_length": 8, "num_beams": 4}
# Type, how its tokenizer is written, and what is particular about its configuration.
SMALL: dict[str, tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = {
    "marian": ("marian", marian_files, (), {}),
    "marian-two-vocabularies": ("marian", marian_files, ((), True), {}),
    "marian-three-targets": ("marian", marian_files, (["deu", "fra", "kor"],), {}),
    "m2m100": ("m2m_100", m2m_files, (published("m2m100"),), {}),
    "nllb": ("m2m_100", _saved(nllb_files, "NllbTokenizer"), (published("nllb200"),), {}),
    "mbart50": (
        *("mbart", _saved(spm_files, "MBart50Tokenizer"), ("MBart50Tokenizer", "unigram")),
        {},
    ),
    "mbart": (  # which begins with the language that it was tuned to write, here ko_KR
        *("mbart", _saved(spm_files, "MBartTokenizer"), ("MBartTokenizer", "unigram")),
        {"decoder_start_token_id": 901 + published("mbart25").index("ko_KR")},
    ),
    "bart": ("bart", bart_files, (), _SUMMARY),
    "t5": ("t5", t5_files, (), {}),
    "madlad": (
        *("t5", _saved(t5_files, "T5Tokenizer"), (["de", "fr", "ko"],)),
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "byt5": ("t5", byt5_files, (), {"feed_forward_proj": "gated-gelu"}),
}


def small_model(folder: Path, name: str, **changes: Any) -> Path:
    """A folder of `SMALL`, written, with these changes of its configuration; its path."""
    model_type, write, more, settings = SMALL[name]
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, lines_of(), *more)
    add_model(folder, model_type, **{**settings, **changes})
    return folder
