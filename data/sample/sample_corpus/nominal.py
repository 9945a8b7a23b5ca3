"""Copulas, comparison, possession, numbers, dates, prepositions, existence."""

from __future__ import annotations

from sample_corpus import english, phrases, timing
from sample_corpus.clause import Clause
from sample_corpus.lexicon import Adjective, Noun, Phrase
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, statement, structure

DESCRIBED = ("furn", "device", "vehicle", "cloth", "read", "film", "bldg", "home", "event", "thought")
COMPARED = ("furn", "device", "vehicle", "cloth", "tool", "instr", "bldg", "home", "read", "film")
SHORT = {"old", "new", "tall", "big", "small", "nice", "rich", "poor", "strong", "cheap", "heavy",
         "light", "warm", "thick", "thin", "dirty", "clean", "fresh", "ripe", "sweet", "hot", "cold",
         "healthy", "simple", "long", "short", "funny", "sad", "quiet", "noisy", "dark", "bright",
         "narrow", "high", "wide", "sharp", "pretty", "lively", "fast", "slow", "safe", "young",
         "clever", "friendly", "brave", "strict", "loyal", "hungry", "clear", "wild", "round",
         "sick", "empty", "tired", "strange"}  # fmt: skip
GRADES = {"good": ("better", "best")}
DOUBLING = {"big", "thin", "hot", "sad"}
WHOLES = (("of_bldg", "bldg"), ("of_vehicle", "vehicle"), ("of_read", "read"), ("of_event", "event"))


def grade(adjective: Adjective, ending: str) -> str:
    """English comparative (er) or superlative (est)."""
    word = adjective.en
    if word in GRADES:
        return GRADES[word][0 if ending == "er" else 1]
    if word not in SHORT:
        return ("more " if ending == "er" else "most ") + word
    if word.endswith("y"):
        return word[:-1] + "i" + ending
    if word.endswith("e"):
        return word + ending[1:]
    return word + (word[-1] if word in DOUBLING else "") + ending


def described(s: Sampler, *types: str, gradable: bool = False) -> tuple[Noun, Adjective]:
    """A noun and an adjective that fits it."""
    while True:
        entry = s.noun(*types)
        adjective = s.adjective(entry, gradable)
        if adjective is not None and not (gradable and adjective.en in ("young", "round", "clear")):
            return entry, adjective


def is_so(subject: NP, s: Sampler, en: str, de: str, tense: str, **more) -> Pair:
    return statement(Clause(subject, s.core["be"], tense=tense, predicate=Phrase(en, de), **more))


@structure(2)
def thing_is_so(s: Sampler) -> Pair:
    entry, adjective = described(s, *DESCRIBED, "public", "foodm", "dish", gradable=True)
    degree = s.adverb("degree")
    subject = phrases.noun_phrase(entry, s.pick(("the", "this", "the")), plural=False)
    city = s.city()
    if entry.types & {"bldg", "place"}:
        subject = phrases.attach(subject, f" in {city.en}", f" in {city.de}")
    tense = s.pick(("present", "past"))
    return is_so(subject, s, f"{degree.en} {adjective.en}", f"{degree.de} {adjective.de}", tense)


@structure()
def person_is_so(s: Sampler) -> Pair:
    entry, adjective = described(s, "prof", gradable=True)
    degree, place = s.adverb("degree"), s.any_place("work", "shop", "school", "eat")
    where = phrases.being_at(place)
    subject = phrases.noun_phrase(entry, "the")
    subject = phrases.attach(subject, f" {where.en}", f" {where.de}")
    tense = s.pick(("present", "past"))
    return is_so(subject, s, f"{degree.en} {adjective.en}", f"{degree.de} {adjective.de}", tense)


@structure(1.5)
def comparative_things(s: Sampler) -> Pair:
    """The old table is more practical than the new chair."""
    entry, adjective = described(s, *COMPARED, gradable=True)
    kind = next(iter(sorted(entry.types & set(COMPARED))))
    other = s.noun(kind)
    while other.en == entry.en:
        other = s.noun(kind)
    first = phrases.noun_phrase(entry, s.pick(("this", "the", "my", "our")))
    second = phrases.noun_phrase(other, "the", s.adjectives(other, 0.7))
    en = f"{grade(adjective, 'er')} than {second.en}"
    much = s.pick((Phrase("", ""), Phrase("much ", "viel ")))
    return is_so(first, s, much.en + en, much.de + adjective.comparative,
                 s.pick(("present", "past")), after=Phrase("", f"als {second.de[0]}"))  # fmt: skip


@structure()
def comparative_people(s: Sampler) -> Pair:
    entry, adjective = described(s, "prof", "human", gradable=True)
    who = s.third()
    while who.plural:
        who = s.third()
    relative = s.noun("kin")
    second = phrases.noun_phrase(relative, who.natural if who.natural != "it" else "the")
    en, de = grade(adjective, "er"), adjective.comparative
    tense = s.pick(("present", "past"))
    return is_so(who, s, f"{en} than {second.en}", de, tense,
                 after=Phrase("", f"als {second.de[0]}"))


@structure()
def as_as(s: Sampler) -> Pair:
    entry, adjective = described(s, *COMPARED, gradable=True)
    first = phrases.noun_phrase(entry, "the", ())
    owner = s.pick(s.lexicon.names[s.pick(("female", "male"))])
    second = phrases.owned(owner, entry)
    city = s.pick(("", "not "))
    so = "nicht so" if city else "so"
    en = f"{city}as {adjective.en} as {second.en}"
    first = phrases.noun_phrase(entry, s.pick(("my", "your", "our")) if not city else "my")
    return is_so(first, s, en, f"{so} {adjective.de} wie {second.de[0]}", "present")


@structure(1.5)
def superlative(s: Sampler) -> Pair:
    """This is the oldest bridge in Prague: die älteste Brücke in Prag."""
    entry, adjective = described(s, "bldg", "public", gradable=True)
    city = s.city()
    best = Adjective(grade(adjective, "est"), "", adjective.superlative, "", "", frozenset())
    phrase = phrases.noun_phrase(entry, "the", (best,))
    opener = s.pick((("This is", "Das ist"), ("This was", "Das war")))
    visit = s.third()
    if s.chance(0.5):
        clause = Clause(visit, s.pick([v for v in s.ordinary if v.en in ("admire", "photograph")]))
        place = Phrase(f"in {city.en}", f"in {city.de}")
        return statement(clause.but(obj=phrases.attach(phrase, f" {place.en}", f" {place.de}"),
                                    tense="past", time=s.time("past")))  # fmt: skip
    return (
        finish(f"{opener[0]} {phrase.en} in {city.en}"),
        finish(f"{opener[1]} {phrase.de[0]} in {city.de}"),
    )


def part_of_whole(s: Sampler) -> tuple[NP, str]:
    """The roof of the old house, and which kind of part it is."""
    part, whole = s.pick(WHOLES)
    entry = s.noun(whole)
    owner = phrases.noun_phrase(entry, s.pick(("the", "this", "the")), s.adjectives(entry, 0.7))
    return phrases.of(phrases.noun_phrase(s.noun(part), "the"), owner), part


@structure(2)
def genitive_object(s: Sampler) -> Pair:
    phrase, kind = part_of_whole(s)
    names = {
        "of_bldg": ("repair", "photograph", "describe"), "of_vehicle": ("repair", "check"),
        "of_read": ("change", "describe"), "of_event": ("change", "discuss"),
    }  # fmt: skip
    verb = s.pick([v for v in s.ordinary if v.en in names[kind]])
    clause = Clause(s.person(), verb, phrase, tense="past", time=s.time("past"))
    return statement(clause, front=s.chance(0.5))


@structure()
def genitive_person(s: Sampler) -> Pair:
    """The brother of the young doctor works in the hospital."""
    owner = s.professional("the", described=0.5)
    kin = phrases.noun_phrase(s.noun("kin"), "the")
    subject = phrases.of(kin, owner)
    clause = s.activity(subject, kinds=("acc", "+", ""), adjuncts=0.5)
    return statement(clause.but(tense="past", time=s.time("past")))


@structure()
def name_possessive(s: Sampler) -> Pair:
    """Anna's brother, Annas Bruder."""
    owner = s.pick(s.lexicon.names[s.pick(("female", "male"))])
    subject = phrases.owned(owner, s.noun("kin"))
    clause = s.activity(subject, kinds=("acc", "+", "dat", ""), adjuncts=0.4)
    return statement(clause.but(tense=s.pick(("past", "future"))))


@structure()
def belongs_to(s: Sampler) -> Pair:
    entry = s.noun("vehicle", "cloth", "bldg", "small", "furn", "instr", "device", "tool")
    subject = phrases.noun_phrase(entry, s.pick(("the", "this")), s.adjectives(entry, 0.7))
    clause = Clause(subject, s.core["belong"], s.someone(s.name()))
    return statement(clause.but(tense=s.pick(("present", "past"))))


@structure()
def works_as(s: Sampler) -> Pair:
    """works as a cook: arbeitet als Koch (no article before a trade)."""
    who = phrases.name(s.pick(s.lexicon.names["male"]), "m")
    if s.chance(0.5):
        entry = s.noun("father", "brother", "uncle", "nephew", "son", "friend", "cousin")
        who = phrases.noun_phrase(entry, s.pick(("my", "our", "her", "his")))
    trade = s.noun("prof")
    while trade.gender != "m" or trade.en in UNPAID:
        trade = s.noun("prof")
    verb = next(v for v in s.ordinary if v.en == "work")
    en = f"as {english.article(trade.en)} {trade.en}"
    city = s.city()
    clause = Clause(who, verb, place=Phrase("", f"in {city.de}"),
                    predicate=Phrase(f"{en} in {city.en}", f"als {trade.de}"))  # fmt: skip
    return statement(clause.but(tense=s.pick(("present", "past"))))


UNPAID = {"guest", "tourist", "neighbour", "colleague", "customer", "patient", "passenger",
          "visitor", "witness", "tenant", "landlord", "expert", "pupil", "student", "employee",
          "boss"}  # fmt: skip


@structure()
def wants_to_become(s: Sampler) -> Pair:
    who = phrases.noun_phrase(s.noun("son", "nephew", "brother", "cousin", "friend"),
                              s.pick(("my", "our", "her", "his")))  # fmt: skip
    if s.chance(0.5):
        who = phrases.name(s.pick(s.lexicon.names["male"]), "m")
    trade = s.noun("prof")
    while trade.gender != "m" or trade.en in UNPAID:
        trade = s.noun("prof")
    predicate = Phrase(f"{english.article(trade.en)} {trade.en}", trade.de)
    modal = s.pick(("want", "wanted", "like"))
    return statement(Clause(who, s.core["become"], modal=modal, predicate=predicate))


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
    return is_so(who, s, f"{years.en} years old", f"{years.de} Jahre alt", "present",
                 time=None, early=Phrase("already", "schon") if s.chance(0.4) else None)  # fmt: skip


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
    en, de = (("to", "nach") if leaving else ("from", "aus"))
    phrase = phrases.noun_phrase(entry, "the", s.adjectives(entry, 0.2))
    subject = phrases.attach(phrase, f" {en} {city.en}", f" {de} {city.de}")
    verb = s.core["depart" if leaving else "arrive"]
    return statement(Clause(subject, verb, tense=s.pick(("present", "past")), time=clock))


@structure()
def event_begins(s: Sampler) -> Pair:
    entry = s.noun("concert", "exam", "wedding", "conference", "lecture", "party", "meeting", "film",
                   "football match", "rehearsal", "competition", "language course")  # fmt: skip
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
             "kilo": ("rice", "meat", "cheese", "fruit", "fish", "apple", "potato", "tomato", "plum"),
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
    verb = s.pick([v for v in s.ordinary if v.en in ("buy", "sell", "find", "draw", "photograph",
                                                     "plant", "order", "own", "need", "write")])
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
    target = s.noun("table", "chair", "bed", "desk", "sofa", "kitchen table", "garden chair", "shelf")
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
    target = s.noun("table", "chair", "bed", "desk", "sofa", "kitchen table", "garden chair", "shelf")
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
            finish(f"{time.en}, it {past_en} in {city.en} the whole day"),
            finish(f"{time.de} {past_de} es in {city.de} den ganzen Tag"),
        )
    time = s.time("future")
    return (
        finish(f"it will probably {en} in {city.en} {time.en}"),
        finish(f"es wird {time.de} wahrscheinlich in {city.de} {de}"),
    )

