"""A model of several languages behind the server: each request has its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.serving.app import create_app
from specdec_plugins.serving.model import load_model, served_settings
from specdec_plugins.serving.settings import ServerSettings
from tests.formats.pretrained.toys import lines_of

pytestmark = pytest.mark.usefixtures("one_thread")
Small = Callable[[str], Path]
LINES = [line for line in lines_of(7) if not line.endswith(("。", "।"))]


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[TestClient]:
    model = served_settings({"data": str(folder), "device": "cpu", **options})
    with TestClient(create_app(load_model(model), ServerSettings())) as client:
        yield client


def test_requests_in_many_languages_at_once(small: Small) -> None:
    folder = small("nllb")
    alone = SpeculativeTranslator.from_pretrained(str(folder), device="cpu")
    asks = [
        (line, source, target)
        for line in LINES
        for source, target in (("de", "ko"), ("ko", "fra_Latn"), ("deu_Latn", "de"))
    ]
    expected = [
        str(alone.translate([line], source_lang=source, target_lang=target)[0])
        for line, source, target in asks
    ]
    assert len({*expected}) > len(LINES)

    with serving(folder, drafter="lookup", block_size=3) as client:

        def translated(ask: tuple[str, str, str]) -> str:
            line, source, target = ask
            body = {"q": line, "source": source, "target": target}
            return str(client.post("/translate", json=body).json()["translatedText"])

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(translated, asks)) == expected
        line, source, target = asks[1]
        parameters = {"source_lang": source, "target_lang": target, "split_sentences": False}
        body = {"inputs": line, "parameters": parameters}
        assert client.post("/generate", json=body).json()["generated_text"] == expected[1]
        stream = client.post("/generate_stream", json=body).text.split("\n\n")
        last = json.loads(stream[-2].removeprefix("data:"))
        assert last["generated_text"] == expected[1]


def test_what_the_server_says_of_its_languages(small: Small) -> None:
    with serving(small("nllb"), source_lang="en") as client:
        languages = {one["code"]: one for one in client.get("/languages").json()}
        assert len(languages) == 202
        assert languages["deu_Latn"]["name"] == "German"
        assert "kor_Hang" in languages["deu_Latn"]["targets"]
        assert "deu_Latn" not in languages["deu_Latn"]["targets"]
        info = client.get("/info").json()
        assert (info["source"], info["target"], info["max_total_tokens"]) == ("eng_Latn", None, 127)
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/translate", {"q": "A", "source": "auto", "target": "xx"}),
            ("/generate", {"inputs": "A", "parameters": {"target_lang": "xx"}}),
            ("/generate", {"inputs": "A"}),
        ]
        messages = [client.post(path, json=body).json()["error"] for path, body in bodies]
        message = "the model nllb does not write 'xx'; give a target language of"
        assert all(one.startswith(message) for one in messages[:2])
        assert "has several target languages; choose one, with --target-lang or in" in messages[2]
        runes = {"inputs": "ᚠᚢᚦ", "parameters": {"target_lang": "de"}}
        copied = client.post("/generate", json=runes).json()
        assert copied["generated_text"] == "ᚠᚢᚦ"
        assert "the tokenizer of the model nllb knows no letter of 'ᚠᚢᚦ'" in copied["unreadable"]


def test_a_text_to_be_summarised_stays_whole(small: Small) -> None:
    """And a character whose bytes are several tokens is streamed when it is whole."""
    text = "Dogs bark. Cats do not. 😀 Birds sing."
    made = SpeculativeTranslator.from_pretrained(str(small("bart")), device="cpu")
    with serving(small("bart")) as client:
        stream = client.post("/generate_stream", json={"inputs": text}).text.split("\n\n")[:-1]
        events = [json.loads(event.removeprefix("data:")) for event in stream]
        assert events[-1]["generated_text"] == str(made.translate([text])[0])
        assert len(events[-1]["details"]["speculation"]) == 1
        assert "\ufffd" not in "".join(event["token"]["text"] for event in events)
