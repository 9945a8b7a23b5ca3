"""German forms written out by hand: what the generator must produce."""

from __future__ import annotations

# article + adjective + noun in nominative, accusative, dative, genitive, written out by hand
AGREEMENT = {
    ("chair", "the", False): "der alte Stuhl|den alten Stuhl|dem alten Stuhl|des alten Stuhls",
    ("chair", "a", False): "ein alter Stuhl|einen alten Stuhl|einem alten Stuhl|eines alten Stuhls",
    ("chair", "the", True): "die alten Stühle|die alten Stühle|den alten Stühlen|der alten Stühle",
    ("lamp", "the", False): "die alte Lampe|die alte Lampe|der alten Lampe|der alten Lampe",
    ("lamp", "a", False): "eine alte Lampe|eine alte Lampe|einer alten Lampe|einer alten Lampe",
    ("lamp", "", True): "alte Lampen|alte Lampen|alten Lampen|alter Lampen",
    ("car", "the", False): "das alte Auto|das alte Auto|dem alten Auto|des alten Autos",
    ("car", "a", False): "ein altes Auto|ein altes Auto|einem alten Auto|eines alten Autos",
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
    ("bread", "", False): "altes Brot|altes Brot|altem Brot|alten Brotes",
    ("soup", "", False): "alte Suppe|alte Suppe|alter Suppe|alter Suppe",
    ("tea", "", False): "alter Tee|alten Tee|altem Tee|alten Tees",
}  # fmt: skip
# infinitive: ich, du, er, wir, preterite of er and wir, perfect of er
VERB_FORMS = {
    "lesen": "lese liest liest lesen las lasen hat_gelesen",
    "fahren": "fahre fährst fährt fahren fuhr fuhren hat_gefahren",
    "sammeln": "sammle sammelst sammelt sammeln sammelte sammelten hat_gesammelt",
    "arbeiten": "arbeite arbeitest arbeitet arbeiten arbeitete arbeiteten hat_gearbeitet",
    "einladen": "lade lädst lädt laden lud luden hat_eingeladen",
    "essen": "esse isst isst essen aß aßen hat_gegessen",
    "verstehen": "verstehe verstehst versteht verstehen verstand verstanden hat_verstanden",
    "reparieren": "repariere reparierst repariert reparieren reparierte reparierten hat_repariert",
    "aufstehen": "stehe stehst steht stehen stand standen ist_aufgestanden",
    "schwimmen": "schwimme schwimmst schwimmt schwimmen schwamm schwammen ist_geschwommen",
    "helfen": "helfe hilfst hilft helfen half halfen hat_geholfen",
    "öffnen": "öffne öffnest öffnet öffnen öffnete öffneten hat_geöffnet",
}
IMPERATIVES = {"lesen": "lies", "helfen": "hilf", "fahren": "fahr", "öffnen": "öffne",
               "arbeiten": "arbeite", "kaufen": "kauf", "sammeln": "sammle"}  # fmt: skip
SEPARABLE = {"einschalten": ("ein", "schaltete"), "abholen": ("ab", "holte"),
             "anrufen": ("an", "rief"), "mitbringen": ("mit", "brachte"),
             "aufhängen": ("auf", "hängte"), "ausfüllen": ("aus", "füllte")}  # fmt: skip
CONJUNCTIONS = {"because_last": "weil", "although_last": "obwohl", "whether_clause": "ob",
                "that_clause_past": "dass", "before_clause": "bevor"}  # fmt: skip
