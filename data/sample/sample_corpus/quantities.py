"""Dates, prices, numbers, times of day, places, animals and the weather."""

from __future__ import annotations

from sample_corpus import phrases, timing
from sample_corpus.clause import Clause
from sample_corpus.lexicon import Phrase
from sample_corpus.nominal import described, is_so
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, statement, structure


@structure()
def born_on(s: Sampler) -> Pair:
    who, city, date = s.third(), s.city(), timing.date(s.rng, with_year=True)
    was = "were" if who.plural else "was"
    wurde = "wurden" if who.plural else "wurde"
    return (
        finish(f"{who.en} {was} born in {city.en} {date.en}"),
        finish(f"{who.de[0]} {wurde} {date.de} in {city.de} geboren"),
    )


@structure()
def age(s: Sampler) -> Pair:
    who, years = s.third(), timing.cardinal(s.rng.randint(19, 89))
    early = Phrase("already", "schon") if s.chance(0.4) else None
    en, de = f"{years.en} years old", f"{years.de} Jahre alt"
    return is_so(who, s, en, de, "present", early=early)


PRICES = {"furn": (49, 899), "device": (39, 799), "cloth": (15, 299), "tool": (6, 89),
          "instr": (90, 999), "dishware": (3, 45), "toy": (4, 60)}  # fmt: skip


@structure(1.5)
def price(s: Sampler) -> Pair:
    kind = s.pick(sorted(PRICES))
    entry = s.noun(kind)
    many = s.chance(0.2)
    subject = phrases.noun_phrase(entry, s.pick(("the", "this")), s.adjectives(entry, 0.7), many)
    where = phrases.being_at(s.pick([p for p in s.lexicon.places if p.noun.en in SHOPS]))
    low, high = PRICES[kind]
    amount = s.rng.randint(low, high)
    clause = Clause(subject, s.core["cost"], place=Phrase("", where.de),
                    predicate=Phrase(f"{amount} euros {where.en}", f"{amount} Euro"))  # fmt: skip
    return statement(clause.but(tense=s.pick(("present", "past"))))


SHOPS = {"market", "department store", "shopping centre", "supermarket"}


@structure()
def timetable(s: Sampler) -> Pair:
    """The train to Vienna departs at half past seven: fährt um halb acht ab."""
    entry = s.noun("train", "bus", "night train")
    city, clock = s.city(), timing.clock(s.rng)
    leaving = s.chance(0.6)
    en, de = ("to", "nach") if leaving else ("from", "aus")
    phrase = phrases.noun_phrase(entry, "the", s.adjectives(entry, 0.2))
    subject = phrases.attach(phrase, f" {en} {city.en}", f" {de} {city.de}")
    verb = s.core["depart" if leaving else "arrive"]
    return statement(Clause(subject, verb, tense=s.pick(("present", "past")), time=clock))


@structure()
def event_begins(s: Sampler) -> Pair:
    entry = s.noun("concert", "exam", "wedding", "conference", "lecture", "party", "meeting",
                   "film", "football match", "rehearsal", "competition",
                   "language course")  # fmt: skip
    where, clock = phrases.being_at(s.any_place("cult", "school", "town")), timing.clock(s.rng)
    phrase = phrases.noun_phrase(entry, "the")
    subject = phrases.attach(phrase, f" {where.en}", f" {where.de}")
    day = s.pick(timing.WEEKDAYS)
    time = Phrase(f"on {day.en} {clock.en}", f"am {day.de} {clock.de}")
    tense = s.pick(("past", "future"))
    return statement(Clause(subject, s.core["begin"], tense=tense, time=time))


@structure()
def there_is(s: Sampler) -> Pair:
    """There is a small museum in Bonn: In Bonn gibt es ein kleines Museum."""
    entry, adjective = described(s, "bldg", "public")
    city = s.city()
    count = timing.cardinal(s.rng.randint(2, 12)) if s.chance(0.5) else None
    phrase = phrases.noun_phrase(entry, "" if count else "a", (adjective,), bool(count), count)
    en, de = s.pick((("are" if count else "is", "gibt"), ("were" if count else "was", "gab")))
    return (
        finish(f"There {en} {phrase.en} in {city.en}"),
        finish(f"In {city.de} {de} es {phrase.de[1]}"),
    )


@structure()
def quantity(s: Sampler) -> Pair:
    """bought three bottles of cold water: drei Flaschen kaltes Wasser."""
    measure = s.noun("bottle") if s.chance(0.5) else s.noun("kilo", "packet")
    stuff = {"bottle": ("water", "milk", "wine", "beer", "apple juice", "orange juice", "lemonade"),
             "kilo": ("rice", "meat", "cheese", "fruit", "fish", "apple", "potato", "tomato"),
             "packet": ("butter", "tea", "coffee", "rice", "biscuit", "cocoa")}  # fmt: skip
    entry = s.noun(*stuff[measure.en])
    number = timing.cardinal(s.rng.randint(2, 12))
    content = phrases.noun_phrase(entry, "", (), plural=not entry.is_mass)
    amount = phrases.noun_phrase(measure, "", (), True, number)
    forms = tuple(f"{a} {c}" for a, c in zip(amount.de, content.de, strict=True))
    obj = NP(f"{amount.en} of {content.en}", forms, plural=True, definite=False)
    verb = next(v for v in s.ordinary if v.en == "buy")
    place = phrases.being_at(s.pick([p for p in s.lexicon.places if p.noun.en in SHOPS]))
    clause = Clause(s.person(), verb, obj, tense=s.pick(("past", "perfect")), place=place)
    return statement(clause.but(time=s.time("past") if clause.tense == "past" else None))


@structure(1.5)
def counted_objects(s: Sampler) -> Pair:
    who = s.person()
    verb = s.pick(
        [
            v
            for v in s.ordinary
            if v.en
            in (
                "buy",
                "sell",
                "find",
                "draw",
                "photograph",
                "plant",
                "order",
                "own",
                "need",
                "write",
            )
        ]
    )
    entry = s.noun(*verb.objects)
    while entry.is_mass or entry.types & {"prof", "place"}:
        entry = s.noun(*verb.objects)
    count = timing.cardinal(s.rng.randint(2, 30))
    obj = phrases.noun_phrase(entry, "", s.adjectives(entry, 0.6), True, count)
    return statement(Clause(who, verb, obj, tense="past", time=s.time("past")))


@structure()
def genitive_prepositions(s: Sampler) -> Pair:
    """Because of the storm ...: Wegen des Sturms ... (verb second after it)."""
    cause = phrases.noun_phrase(s.noun("cause"), "the")
    event = phrases.noun_phrase(s.noun("event"), "the", ())
    en, de, of = s.pick((("because of", "wegen", cause), ("despite", "trotz", cause),
                         ("during", "während", event)))  # fmt: skip
    clause = s.activity(flags="i", kinds=("acc", "+", "dir", "dat"), adjuncts=0)
    clause = clause.but(tense="past")
    front = Phrase(f"{en} {of.en}", f"{de} {of.case('gen')}")
    return statement(clause.but(time=front), front=True)


@structure()
def put_on_table(s: Sampler) -> Pair:
    """put the key on the table: legte den Schlüssel auf den Tisch (accusative of motion)."""
    who = s.person()
    verb = s.core["lay"]
    obj = s.thing(s.noun("doc", "read", "key", "wallet", "map", "towel", "pencil", "coin"), who)
    target = s.noun(
        "table", "chair", "bed", "desk", "sofa", "kitchen table", "garden chair", "shelf"
    )
    there = phrases.noun_phrase(target, "the", s.adjectives(target, 0.4))
    preposition = s.pick((("on", "auf"), ("under", "unter"), ("next to", "neben")))
    where = phrases.prepositional(*preposition, "acc", there)
    return statement(Clause(who, verb, obj, tense="past", direction=where))


@structure()
def lies_on_table(s: Sampler) -> Pair:
    """The key is lying on the table: liegt auf dem Tisch (dative of rest)."""
    entry = s.noun("doc", "read", "key", "wallet", "map", "towel", "pencil", "coin")
    subject = phrases.noun_phrase(entry, s.pick(("the", "my", "your", "his", "her")),
                                  s.adjectives(entry, 0.6))  # fmt: skip
    target = s.noun(
        "table", "chair", "bed", "desk", "sofa", "kitchen table", "garden chair", "shelf"
    )
    there = phrases.noun_phrase(target, "the", s.adjectives(target, 0.4))
    preposition = s.pick((("on", "auf"), ("under", "unter"), ("next to", "neben")))
    where = phrases.prepositional(*preposition, "dat", there)
    tense = s.pick(("progressive", "past_progressive"))
    return statement(Clause(subject, s.core["lie"], tense=tense, place=where))


EXOTIC = {"elephant", "lion", "tiger", "monkey", "giraffe", "penguin", "bear", "parrot"}


@structure()
def animals(s: Sampler) -> Pair:
    entry = s.noun("pet", "farm", "wild")
    many = s.chance(0.3)
    subject = phrases.noun_phrase(entry, "the", s.adjectives(entry, 0.7), many)
    homes = ("zoo",) if entry.en in EXOTIC else ("garden", "forest", "park")
    place = s.pick([p for p in s.lexicon.places if p.noun.en in homes])
    verb = s.pick([v for v in s.ordinary if v.en in ("sleep", "run", "rest") and not v.government])
    where = phrases.being_at(place, s.adjectives(place.noun, 0.4))
    tense, time = s.pick((("progressive", None), ("past", s.time("past"))))
    early = Phrase("", "gerade") if tense == "progressive" else None
    return statement(Clause(subject, verb, tense=tense, place=where, time=time, early=early))


@structure()
def weather(s: Sampler) -> Pair:
    city = s.city()
    en, de, past_en, past_de = s.pick((("rain", "regnen", "rained", "regnete"),
                                       ("snow", "schneien", "snowed", "schneite")))  # fmt: skip
    if s.chance(0.5):
        time = s.time("past")
        return (
            finish(f"{time.en}, it {past_en} in {city.en} for hours"),
            finish(f"{time.de} {past_de} es in {city.de} stundenlang"),
        )
    time = s.time("future")
    return (
        finish(f"it will probably {en} in {city.en} {time.en}"),
        finish(f"es wird {time.de} wahrscheinlich in {city.de} {de}"),
    )
