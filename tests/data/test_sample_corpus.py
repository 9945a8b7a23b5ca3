"""The sample corpus: its counts, its splits, and German checked against forms written by hand."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "sample"
sys.path.insert(0, str(SAMPLE))

from sample_corpus import corpus, inflection, lexicon  # noqa: E402
from sample_corpus.clause import noun_phrase  # noqa: E402
from sample_corpus.sampler import Sampler, nouns, verbs  # noqa: E402

# noun, determiner, plural: the phrase with "old" in nominative, accusative, dative, genitive
AGREEMENT = {
    ("chair", "the", False): "der alte Stuhl|den alten Stuhl|dem alten Stuhl|des alten Stuhls",
    ("chair", "a", False): "ein alter Stuhl|einen alten Stuhl|einem alten Stuhl|eines alten Stuhls",
    ("chair", "the", True): "die alten Stühle|die alten Stühle|den alten Stühlen|der alten Stühle",
    ("lamp", "a", False): "eine alte Lampe|eine alte Lampe|einer alten Lampe|einer alten Lampe",
    ("lamp", "none", True): "alte Lampen|alte Lampen|alten Lampen|alter Lampen",
    ("car", "my", True): "meine alten Autos|meine alten Autos|meinen alten Autos"
    "|meiner alten Autos",
    ("house", "our", False): "unser altes Haus|unser altes Haus|unserem alten Haus"
    "|unseres alten Hauses",
    ("student", "the", False): "der alte Student|den alten Studenten|dem alten Studenten"
    "|des alten Studenten",
    ("house", "this", False): "dieses alte Haus|dieses alte Haus|diesem alten Haus"
    "|dieses alten Hauses",
    ("book", "no", True): "keine alten Bücher|keine alten Bücher|keinen alten Büchern"
    "|keiner alten Bücher",
    ("tea", "none", False): "alter Tee|alten Tee|altem Tee|alten Tees",
}  # fmt: skip
# ich, er, wir in the present; er, wir in the preterite; er in the perfect
VERB_FORMS = {
    "lesen": "lese liest lesen las lasen hat_gelesen",
    "sammeln": "sammle sammelt sammeln sammelte sammelten hat_gesammelt",
    "einladen": "lade lädt laden lud luden hat_eingeladen",
    "aufstehen": "stehe steht stehen stand standen ist_aufgestanden",
    "schwimmen": "schwimme schwimmt schwimmen schwamm schwammen ist_geschwommen",
    "öffnen": "öffne öffnet öffnen öffnete öffneten hat_geöffnet",
    "sein": "bin ist sind war waren ist_gewesen",
}
CLAUSES = [  # who, verb, object, tense, order, English, German
    ("he", "einschalten", "present", "main", "he turns on X", "er schaltet X ein"),
    ("he", "einschalten", "past", "final", "he turned on X", "er X einschaltete"),
    ("we", "einschalten", "perfect", "first", "have we turned on X", "haben wir X eingeschaltet"),
    ("we", "abholen", "must", "final", "we must pick up X", "wir X abholen müssen"),
    ("she", "freuen", "past", "main", "she looked forward to X", "sie freute sich auf X"),
    ("I", "freuen", "past", "first", "did I look forward to X", "freute ich mich auf X"),
    ("we", "ansehen", "future", "main", "we will watch X", "wir werden uns X ansehen"),
    ("he", "anrufen", "present", "zu", "", "X anzurufen"),
    ("he", "reparieren", "present", "gerund", "repairing X", ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def made() -> corpus.Corpus:
    return corpus.generate(1, {"train": 6000, "dev": 300, "test": 400}, lambda *_: None)


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SAMPLE / "generate.py"), "--output", str(folder), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_splits_share_no_sentence_and_held_out_patterns_are_in_test_alone(
    made: corpus.Corpus,
) -> None:
    assert {split: len(sentences) for split, sentences in made.items()} == {
        "train": 6000, "dev": 300, "test": 400
    }  # fmt: skip
    for side in ("en", "de"):
        texts = [getattr(s, side) for sentences in made.values() for s in sentences]
        assert len(set(texts)) == len(texts)
    known, held_out = ({p.name for p in corpus.load() if p.held_out == h} for h in (False, True))
    assert {s.structure for s in made["train"]} == known
    assert {s.structure for s in made["test"]} >= held_out
    assert sum(s.structure in held_out for s in made["test"]) == 100
    assert not held_out & {s.structure for s in made["dev"]}


def test_sentences_vary_and_are_tidy(made: corpus.Corpus) -> None:
    odd = re.compile(r"\s\s|\s[,.;?]|[,;][,.;?]|\bNone\b|[{}|_]|\t")
    for side in ("en", "de"):
        texts = [getattr(s, side) for s in made["train"]]
        assert len({word.strip(".,;?") for text in texts for word in text.split()}) > 2000
        for text in texts:
            assert re.fullmatch(r"[A-ZÄÖÜ].*[.?]", text), text
            assert not odd.search(text), text
            assert 4 <= len(text.split()) <= 25


def test_subordinate_clauses_end_in_their_finite_verb(made: corpus.Corpus) -> None:
    because = [s.de for s in made["train"] if s.structure == "because"]
    assert len(because) > 50
    assert all(re.search(r", weil .* (war|waren)\.$", text) for text in because)


@pytest.mark.integration
def test_same_seed_same_bytes(tmp_path: Path) -> None:
    sizes = ("--train", "300", "--dev", "20", "--test", "40")
    written = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert run(tmp_path / name, "--seed", seed, *sizes).returncode == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1] != written[2]
    names = [f"{split}.{side}" for split in ("train", "dev", "test") for side in ("en", "de")]
    assert set(written[0]) == {*names, "structures.tsv"}
    head, *rows = written[0]["structures.tsv"].decode().splitlines()
    assert head.split("\t") == ["line", "structure", "seen_in_training"]
    assert len(rows) == 40
    assert {row.split("\t")[2] for row in rows} == {"yes", "no"}


@pytest.mark.integration
@pytest.mark.parametrize(("sizes", "says"), [(("--train", "5"), "file"), (("--dev", "0"), "'0'")])
def test_bad_options_are_one_sentence(tmp_path: Path, sizes: tuple[str, ...], says: str) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = run(blocked, *sizes)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert says in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("entry", "det", "plural"), AGREEMENT)
def test_article_adjective_and_noun_agree(entry: str, det: str, plural: bool) -> None:
    old, determiner = lexicon.Phrase("old", "alt"), lexicon.indexed("determiners")[det]
    phrase = noun_phrase(nouns((entry,))[0], determiner, plural, old)
    assert "|".join(phrase.de) == AGREEMENT[(entry, det, plural)]


@pytest.mark.parametrize("infinitive", VERB_FORMS)
def test_verb_forms(infinitive: str) -> None:
    verb, tenses = verbs("=" + infinitive)[0], lexicon.indexed("tenses")
    wanted = [("present", 0), ("present", 1), ("present", 2), ("past", 1), ("past", 2)]
    forms = [inflection.conjugate(verb, tenses[tense], number)[0] for tense, number in wanted]
    finite, _, participle = inflection.conjugate(verb, tenses["perfect"], 1)
    assert " ".join([*forms, f"{finite}_{participle}"]) == VERB_FORMS[infinitive]


@pytest.mark.parametrize(("who", "verb", "tense", "order", "english", "german"), CLAUSES)
def test_word_order(who: str, verb: str, tense: str, order: str, english: str, german: str) -> None:
    """Where the object, the prefix and the reflexive pronoun stand; X is the object."""
    wanted = {"who": who, "verb": "=" + verb, "tense": tense, "adjuncts": "0"}
    clause = Sampler(random.Random(0)).clause(wanted, {})
    assert clause.obj is not None
    if english:
        assert clause.english(order).replace(clause.obj.en, "X") == english
    if german:
        phrase = clause.obj.case(clause.governed[1])
        assert clause.german(order).replace(phrase, "X") == german


@pytest.mark.parametrize(
    ("joined", "expected"),
    [("in dem Garten", "im Garten"), ("zu der Schule", "zur Schule"), ("in das Amt", "ins Amt"),
     ("in den Garten", "in den Garten"), ("von Anna", "von Anna")],
)  # fmt: skip
def test_prepositions_contract_with_articles(joined: str, expected: str) -> None:
    assert inflection.contract(*joined.split(" ", 1)) == expected
