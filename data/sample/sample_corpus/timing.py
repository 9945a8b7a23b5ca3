"""Numbers, dates and times of day, in words and in figures."""

from __future__ import annotations

import random

from sample_corpus.lexicon import Phrase

ONES_EN = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen""".split()  # noqa: SIM905  (reads better as text)
TENS_EN = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
ONES_DE = """null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn
fünfzehn sechzehn siebzehn achtzehn neunzehn""".split()  # noqa: SIM905  (reads better as text)
TENS_DE = "_ _ zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()  # noqa: SIM905
MONTHS = [
    Phrase("January", "Januar"), Phrase("February", "Februar"), Phrase("March", "März"),
    Phrase("April", "April"), Phrase("May", "Mai"), Phrase("June", "Juni"),
    Phrase("July", "Juli"), Phrase("August", "August"), Phrase("September", "September"),
    Phrase("October", "Oktober"), Phrase("November", "November"), Phrase("December", "Dezember"),
]  # fmt: skip
AGO = [("day", "Tagen"), ("week", "Wochen"), ("month", "Monaten"), ("year", "Jahren")]
SPANS = [("minute", "Minuten"), ("hour", "Stunden"), ("day", "Tage"), ("week", "Wochen"),
         ("month", "Monate"), ("year", "Jahre")]  # fmt: skip
WEEKDAYS = [
    Phrase("Monday", "Montag"), Phrase("Tuesday", "Dienstag"), Phrase("Wednesday", "Mittwoch"),
    Phrase("Thursday", "Donnerstag"), Phrase("Friday", "Freitag"), Phrase("Saturday", "Samstag"),
    Phrase("Sunday", "Sonntag"),
]  # fmt: skip


def cardinal(number: int) -> Phrase:
    """A number from 0 to 99 in words: twenty-four, vierundzwanzig."""
    if number < 20:
        return Phrase(ONES_EN[number], ONES_DE[number])
    tens, ones = divmod(number, 10)
    if not ones:
        return Phrase(TENS_EN[tens], TENS_DE[tens])
    unit = "ein" if ones == 1 else ONES_DE[ones]
    return Phrase(f"{TENS_EN[tens]}-{ONES_EN[ones]}", f"{unit}und{TENS_DE[tens]}")


def clock(rng: random.Random) -> Phrase:
    """at half past seven: um halb acht."""
    hour = rng.randint(1, 11)
    this, following = cardinal(hour), cardinal(hour + 1)
    kinds = [
        Phrase(f"at {this.en} o'clock", f"um {'ein' if hour == 1 else this.de} Uhr"),
        Phrase(f"at half past {this.en}", f"um halb {following.de}"),
        Phrase(f"at a quarter past {this.en}", f"um Viertel nach {this.de}"),
        Phrase(f"at a quarter to {following.en}", f"um Viertel vor {following.de}"),
        Phrase(f"at ten past {this.en}", f"um zehn nach {this.de}"),
        Phrase(f"at twenty to {following.en}", f"um zwanzig vor {following.de}"),
    ]
    return kinds[rng.randrange(len(kinds))]


def date(rng: random.Random, with_year: bool = False) -> Phrase:
    """on 3 May 1985: am 3. Mai 1985."""
    month = MONTHS[rng.randrange(12)]
    day = rng.randint(1, 28)
    year = f" {rng.randint(1930, 2019)}" if with_year else ""
    return Phrase(f"on {day} {month.en}{year}", f"am {day}. {month.de}{year}")


def computed(rng: random.Random, kind: str, lasting: bool = False) -> Phrase:
    """A time with a number; `lasting` verbs may lie months and years away."""
    if kind == "habit":
        time = clock(rng)
        return Phrase(f"every day {time.en}", f"jeden Tag {time.de}")
    number = cardinal(rng.randint(2, 12))
    roll = rng.random()
    if roll < 0.3:
        return date(rng)
    if roll < 0.5 and lasting:
        month = MONTHS[rng.randrange(12)]
        return Phrase(f"in {month.en}", f"im {month.de}")
    unit_en, unit_de = AGO[rng.randrange((4 if kind == "past" else 3) if lasting else 2)]
    if kind == "past":
        return Phrase(f"{number.en} {unit_en}s ago", f"vor {number.de} {unit_de}")
    return Phrase(f"in {number.en} {unit_en}s", f"in {number.de} {unit_de}")


def span(rng: random.Random) -> Phrase:
    """for six weeks: seit sechs Wochen (dative plural)."""
    number = cardinal(rng.randint(2, 20))
    unit_en, unit_de = AGO[rng.randrange(1, 4)]
    return Phrase(f"for {number.en} {unit_en}s", f"seit {number.de} {unit_de}")
