"""The sample corpus: its counts, its splits, and German checked against tables of its own."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "sample"
sys.path.insert(0, str(SAMPLE))

from sample_corpus import corpus, german, lexicon, phrases, structures, timing  # noqa: E402
from sample_corpus.clause import Clause, english_clause, german_clause, german_zu  # noqa: E402
from sample_corpus.lexicon import Phrase  # noqa: E402

from tests.data.german_tables import (  # noqa: E402
    AGREEMENT,
    CONJUNCTIONS,
    IMPERATIVES,
    SEPARABLE,
    VERB_FORMS,
)


@pytest.fixture(scope="module")
def words() -> lexicon.Lexicon:
    return lexicon.load()


@pytest.fixture(scope="module")
def made() -> corpus.Corpus:
    return corpus.generate(1, 24000, 1000, 1000, lambda *_: None)


def verb(words: lexicon.Lexicon, infinitive: str) -> lexicon.Verb:
    return next(v for v in words.verbs if v.de == infinitive)


def clause(words: lexicon.Lexicon, infinitive: str, tense: str = "past") -> Clause:
    objects = {"abholen": "guest", "anrufen": "guest", "ausfüllen": "form", "aufhängen": "mirror"}
    thing = phrases.noun_phrase(words.noun(objects.get(infinitive, "lamp")))
    return Clause(phrases.name("Anna", "f"), verb(words, infinitive), thing, tense=tense)


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SAMPLE / "generate.py"), "--output", str(folder), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# Counts and splits ---------------------------------------------------------------------------


def test_sizes_types_and_structures(made: corpus.Corpus) -> None:
    assert [len(part) for part in made.splits().values()] == [24000, 1000, 1000]
    assert len({s.structure for s in made.train}) >= 60
    for side in ("en", "de"):
        texts = [getattr(s, side) for s in made.train]
        assert len(corpus.word_types(texts)) >= 2000
        assert all(4 <= len(text.split()) <= 25 for text in texts)


def test_no_sentence_is_shared_or_repeated(made: corpus.Corpus) -> None:
    for side in ("en", "de"):
        everything = [getattr(s, side) for part in made.splits().values() for s in part]
        assert len(set(everything)) == len(everything)


def test_held_out_structures_are_in_test_alone(made: corpus.Corpus) -> None:
    held_out = {s.name for s in structures.REGISTER.values() if s.held_out}
    assert 6 <= len(held_out) <= 10
    assert not held_out & {s.structure for s in made.train + made.dev}
    in_test = [s for s in made.test if s.structure in held_out]
    assert {s.structure for s in in_test} == held_out
    assert 0.15 <= len(in_test) / len(made.test) <= 0.35


def test_every_test_word_occurs_in_training(made: corpus.Corpus) -> None:
    """Held out means new structures and sentences, not new vocabulary (a few forms aside)."""
    for side in ("en", "de"):
        known = corpus.word_types([getattr(s, side) for s in made.train])
        new = corpus.word_types([getattr(s, side) for s in made.test]) - known
        assert len(new) <= 40


def test_text_is_clean(made: corpus.Corpus) -> None:
    odd = re.compile(r"\s\s|\s[,.;!?]|[,;][,.;!?]|\bNone\b|^\s|\s$|\t")
    for part in made.splits().values():
        for s in part:
            for text in (s.en, s.de):
                assert not odd.search(text), text
                assert text[0].isupper()
                assert text[-1] in ".?!"


def test_one_english_lemma_has_one_german_lemma(words: lexicon.Lexicon) -> None:
    """A small model can learn the corpus because translation is nearly a function."""
    for table in (words.nouns, words.adjectives, *words.phrases.values()):
        seen: dict[str, str] = {}
        for entry in table:
            assert seen.setdefault(entry.en, entry.de) == entry.de, entry.en


# The command line ----------------------------------------------------------------------------


@pytest.mark.integration
def test_same_seed_same_bytes(tmp_path: Path) -> None:
    sizes = ("--train", "300", "--dev", "20", "--test", "40")
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert run(tmp_path / name, "--seed", seed, *sizes).returncode == 0
    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b")
    assert digest_of(tmp_path / "a") != digest_of(tmp_path / "c")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "dev.de", "dev.en", "structures.tsv", "test.de", "test.en", "train.de", "train.en",
    ]  # fmt: skip
    rows = (tmp_path / "a" / "structures.tsv").read_text().splitlines()
    assert rows[0].split("\t") == ["line", "structure", "seen_in_training"]
    assert len(rows) == 41
    assert {row.split("\t")[2] for row in rows[1:]} == {"yes", "no"}


@pytest.mark.integration
def test_bad_output_is_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = run(blocked, "--train", "5", "--dev", "1", "--test", "4")
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert str(blocked) in result.stderr


# German grammar, against tables that the generator does not read -------------------------------


@pytest.mark.parametrize(("entry", "det", "plural"), AGREEMENT)
def test_article_adjective_noun_agree(
    words: lexicon.Lexicon, entry: str, det: str, plural: bool
) -> None:
    old = next(a for a in words.adjectives if a.en == "old")
    phrase = phrases.noun_phrase(words.noun(entry), det, (old,), plural)
    assert "|".join(phrase.de) == AGREEMENT[(entry, det, plural)]


@pytest.mark.parametrize("infinitive", VERB_FORMS)
def test_verb_forms(words: lexicon.Lexicon, infinitive: str) -> None:
    entry = verb(words, infinitive)
    present = [german.present(entry, person, False) for person in (1, 2, 3)]
    past = [german.preterite(entry, 3, plural) for plural in (False, True)]
    finite, _, tail = german.verb_complex(entry, "perfect", 3, False)
    forms = [*present, german.present(entry, 1, True), *past, "_".join([finite, *tail])]
    assert " ".join(forms) == VERB_FORMS[infinitive]


@pytest.mark.parametrize("infinitive", IMPERATIVES)
def test_imperatives(words: lexicon.Lexicon, infinitive: str) -> None:
    assert german.imperative(verb(words, infinitive)) == IMPERATIVES[infinitive]


@pytest.mark.parametrize("infinitive", SEPARABLE)
def test_separable_prefix_leaves_main_clauses_only(words: lexicon.Lexicon, infinitive: str) -> None:
    prefix, finite = SEPARABLE[infinitive]
    one = clause(words, infinitive)
    assert german_clause(one).split()[1] == finite
    assert german_clause(one).split()[-1] == prefix
    assert german_clause(one, "final").split()[-1] == prefix + finite
    base = infinitive.removeprefix(prefix)
    assert german_zu(one).split()[-1] == f"{prefix}zu{base}"


def test_verb_second_and_its_complements(words: lexicon.Lexicon) -> None:
    yesterday = Phrase("yesterday", "gestern")
    one = clause(words, "einschalten").but(time=yesterday)
    assert german_clause(one) == "Anna schaltete gestern die Lampe ein"
    assert german_clause(one, front="gestern") == "gestern schaltete Anna die Lampe ein"
    perfect = one.but(tense="perfect", negation="nicht", time=None)
    assert german_clause(perfect) == "Anna hat die Lampe nicht eingeschaltet"
    assert german_clause(perfect, "final") == "Anna die Lampe nicht eingeschaltet hat"
    assert german_clause(one.but(tense="future", time=None), "first") == (
        "wird Anna die Lampe einschalten"
    )
    assert german_clause(one.but(modal="must", time=None), "final") == (
        "Anna die Lampe einschalten muss"
    )


def test_passive(words: lexicon.Lexicon) -> None:
    lamp = phrases.noun_phrase(words.noun("lamp"))
    uncle = phrases.noun_phrase(words.noun("uncle"), "the")
    one = Clause(lamp, verb(words, "reparieren"), passive=True, tense="perfect", agent=uncle)
    assert german_clause(one) == "die Lampe ist vom Onkel repariert worden"
    assert english_clause(one) == "the lamp has been repaired by the uncle"
    assert german_clause(one.but(tense="past"), "final") == "die Lampe vom Onkel repariert wurde"


def test_reflexive_verbs_keep_their_pronoun(words: lexicon.Lexicon) -> None:
    concert = phrases.noun_phrase(words.noun("concert"))
    glad = Clause(phrases.pronoun("I"), verb(words, "freuen"), concert)
    assert german_clause(glad) == "ich freue mich auf das Konzert"
    anna = glad.but(subject=phrases.name("Anna", "f"), time=Phrase("today", "heute"))
    assert german_clause(anna, front="heute") == "heute freut sich Anna auf das Konzert"
    assert german_clause(anna.but(time=None), "final", "auf das") == (
        "auf das Anna sich auf das Konzert freut"
    )
    watch = Clause(phrases.pronoun("we"), verb(words, "ansehen"), concert)
    assert german_clause(watch) == "wir sehen uns das Konzert an"


@pytest.mark.parametrize("name", CONJUNCTIONS)
def test_subordinate_clauses_end_in_their_finite_verb(
    words: lexicon.Lexicon, made: corpus.Corpus, name: str
) -> None:
    finite = {german.present(v, p, n) for v in words.verbs for p in (1, 3) for n in (False, True)}
    finite |= {german.preterite(v, 3, n) for v in words.verbs for n in (False, True)}
    finite |= {v.prefix + form for v in words.verbs for form in finite if v.prefix}
    checked = [s.de for s in made.train if s.structure == name]
    assert len(checked) > 50
    for text in checked:
        assert f", {CONJUNCTIONS[name]} " in text
        assert text.rstrip(".").split()[-1] in finite, text


@pytest.mark.parametrize(
    ("preposition", "noun", "case", "expected"),
    [
        ("in", "garden", "dat", "im Garten"), ("in", "garden", "acc", "in den Garten"),
        ("in", "museum", "acc", "ins Museum"), ("zu", "station", "dat", "zum Bahnhof"),
        ("zu", "school", "dat", "zur Schule"), ("von", "uncle", "dat", "vom Onkel"),
        ("an", "beach", "dat", "am Strand"), ("auf", "market", "acc", "auf den Markt"),
    ],
)  # fmt: skip
def test_prepositions_govern_and_contract(
    words: lexicon.Lexicon, preposition: str, noun: str, case: str, expected: str
) -> None:
    phrase = phrases.noun_phrase(words.noun(noun))
    assert german.contract(preposition, phrase.case(case)) == expected


def test_numbers() -> None:
    expected = {
        1: "eins",
        16: "sechzehn",
        21: "einundzwanzig",
        30: "dreißig",
        77: "siebenundsiebzig",
    }
    assert {n: timing.cardinal(n).de for n in expected} == expected
    assert timing.cardinal(42).en == "forty-two"


def test_clock_counts_towards_the_next_hour() -> None:
    """half past seven is halb acht."""
    rng = random.Random(0)
    hours = timing.ONES_EN, timing.ONES_DE
    found = 0
    for _ in range(300):
        time = timing.clock(rng)
        match = re.fullmatch(r"at half past (\w+)", time.en)
        if match:
            found += 1
            following = hours[1][hours[0].index(match.group(1)) + 1]
            assert time.de == f"um halb {following}"
    assert found > 10
