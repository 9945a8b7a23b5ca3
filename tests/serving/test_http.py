"""The routes over real sockets: answers, errors, limits."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from specdec_plugins.decoding.drafters import DraftContext, build_drafter
from specdec_plugins.decoding.engine import EngineConfig, SpeculativeDecoder
from tests.serving.toys import (
    Running,
    ToyCodec,
    expected,
    expected_ids,
    running,
    toy_model,
    wait_until,
)

TEXT = "  w0 w1. w5 w2.\n\n w7 "
WANTED = f"  {expected('w0 w1.')} {expected('w5 w2.')}\n\n {expected('w7')} "


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(max_characters=500, max_body=2000, max_texts=3) as there:
        yield there


def num_answered(server: Running, route: str, code: int) -> float:
    """As the metrics have it, which count an answer once it has been sent."""
    return server.metric("specdec_requests_total", route=route, code=str(code))


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data:")) for block in blocks]


def generate(server: Running, inputs: str = TEXT, **parameters: Any) -> dict[str, Any]:
    response = server.client.post("/generate", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_generate(server: Running) -> None:
    answer = generate(server, details=True)
    assert answer["generated_text"] == WANTED
    details = answer["details"]
    assert [s["rounds"] for s in details["speculation"]] == [
        len(s["drafted"]) for s in details["speculation"]
    ]
    assert details["generated_tokens"] == sum(
        len(expected_ids(s)) for s in ("w0 w1.", "w5 w2.", "w7")
    )
    assert details["finish_reason"] == "length"  # w0 never ends
    joined = "".join(t["text"] for t in details["tokens"] if not t["special"])
    assert joined == WANTED.rstrip()


@pytest.mark.parametrize(
    "parameters",
    [
        {"use_drafter": False},
        {"block_size": 1},
        {"block_size": 25},
        {"beta": 1, "tau": 5.0},
        {"seed": 7},
        {"max_new_tokens": None, "watermark": False, "stop": [], "best_of": None},
    ],
)
def test_no_way_of_speculating_changes_the_text(
    server: Running, parameters: dict[str, Any]
) -> None:
    assert generate(server, **parameters)["generated_text"] == WANTED


def test_overrides_reach_the_engine(server: Running) -> None:
    def rounds(**parameters: Any) -> tuple[int, list[int]]:
        details = generate(server, "w0", details=True, **parameters)["details"]
        return details["speculation"][0]["rounds"], details["speculation"][0]["drafted"]

    num_plain, drafted = rounds(use_drafter=False)
    assert (num_plain, set(drafted)) == (40, {0})
    num_rounds, drafted = rounds(block_size=2)
    assert num_rounds < 40
    assert max(drafted) == 2
    assert max(rounds()[1]) == 5
    assert rounds(max_new_tokens=3, use_drafter=False)[0] == 3
    cut = generate(server, "w0", max_new_tokens=3, details=True)
    assert cut["generated_text"] == expected("w0", 3)
    assert cut["details"]["finish_reason"] == "length"
    assert generate(server, "w1", details=True)["details"]["finish_reason"] == "eos_token"
    tolerant = generate(server, "w0", beta=9, tau=100, details=True)["details"]["speculation"][0]
    assert tolerant["accepted"][:3] == tolerant["drafted"][:3]


def test_sampling_is_reproducible_by_its_seed(server: Running) -> None:
    def sample(**parameters: Any) -> dict[str, Any]:
        return generate(server, "w1 w2", do_sample=True, details=True, **parameters)

    first = sample(seed=5, temperature=1.5)
    assert first["details"]["seed"] == 5
    assert sample(seed=5, temperature=1.5)["generated_text"] == first["generated_text"]
    texts = {sample(seed=s, temperature=1.5)["generated_text"] for s in range(8)}
    assert len(texts) > 1
    assert sample(temperature=1.5)["details"]["seed"] != sample(temperature=1.5)["details"]["seed"]
    assert sample(seed=5, top_k=1)["generated_text"] == expected("w1 w2")


@pytest.mark.parametrize("inputs", [TEXT, "w5", "w0. w1. w2. w3. w4. w5.", "w1\nw1"])
@pytest.mark.parametrize("use_drafter", [True, False])
def test_a_stream_carries_the_same_text_in_order(
    server: Running, inputs: str, use_drafter: bool
) -> None:
    body = {"inputs": inputs, "parameters": {"use_drafter": use_drafter}}
    events = events_of(server.client.post("/generate_stream", json=body))
    whole = generate(server, inputs, use_drafter=use_drafter, details=True)
    assert [event["index"] for event in events] == list(range(len(events)))
    assert [e["generated_text"] for e in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["generated_text"] == whole["generated_text"]
    assert "".join(e["token"]["text"] for e in events).rstrip() == whole["generated_text"].rstrip()
    assert [e["token"]["id"] for e in events] == [t["id"] for t in whole["details"]["tokens"]]
    assert events[-1]["details"]["generated_tokens"] == len(events)


def test_a_stream_tells_every_round(server: Running) -> None:
    events = events_of(server.client.post("/generate_stream", json={"inputs": "w4"}))
    rounds = [event["round"] for event in events if event["round"]]
    assert [r["index"] for r in rounds] == list(range(len(rounds)))
    assert sum(len(r["emitted"]) for r in rounds) == len(events)
    ids = [event["token"]["id"] for event in events]
    assert ids == expected_ids("w4")
    owns = set()
    for r in rounds:
        drafted, emitted = r["drafted"], r["emitted"]
        assert drafted[: r["accepted"]] == emitted[: r["accepted"]]
        own = {"bonus": r["accepted"] == len(drafted), "correction": r["accepted"] < len(drafted)}
        assert r["own"] is None or own[r["own"]]
        owns.add(r["own"])
        assert r["ms"] >= r["queue_ms"] >= 0
    assert "correction" in owns
    assert rounds[-1]["text"] == expected("w4")
    assert [r["ms"] for r in rounds] == sorted(r["ms"] for r in rounds)


@pytest.mark.parametrize("blank", ["", " \n ", "\t"])
def test_a_text_without_words_stays_as_it_is(server: Running, blank: str) -> None:
    assert generate(server, blank, details=True)["generated_text"] == blank
    events = events_of(server.client.post("/generate_stream", json={"inputs": blank}))
    assert [event["generated_text"] for event in events] == [blank]
    body = {"q": [blank, "w1"], "source": "en", "target": "de", "alternatives": 1}
    answer = server.client.post("/translate", json=body).json()
    assert answer["translatedText"] == [blank, expected("w1")]
    assert answer["alternatives"][0] == []


def test_translate_takes_a_string_a_list_and_a_form(server: Running) -> None:
    languages = {"source": "en", "target": "de"}
    # curl -d sends JSON under a form's name.
    form = {"content-type": "application/x-www-form-urlencoded"}
    for wanted, how in (
        (WANTED, {"json": {"q": TEXT, "format": "text", "api_key": "", **languages}}),
        ([expected("w3"), WANTED], {"json": {**languages, "q": ["w3", TEXT], "source": "auto"}}),
        (WANTED, {"data": {"q": TEXT, **languages}}),
        ([expected("w1"), expected("w2")], {"data": {"q": ["w1", "w2"], **languages}}),
        (expected("w2"), {"content": json.dumps({"q": "w2", **languages}), "headers": form}),
    ):
        response = server.client.post("/translate", **how)  # type: ignore[arg-type]
        assert response.status_code == 200, response.text
        assert response.json() == {"translatedText": wanted, "alternatives": None}


def test_alternatives_differ_and_are_reproducible(server: Running) -> None:
    body = {"q": ["w1 w1", "w2"], "source": "en", "target": "de", "alternatives": 3, "seed": 1}
    first, second = (server.client.post("/translate", json=body).json() for _ in range(2))
    assert first == second
    for text, others in zip(first["translatedText"], first["alternatives"], strict=True):
        assert len({text, *others}) == 1 + len(others)
    assert first["translatedText"] == [expected("w1 w1"), expected("w2")]
    assert len(first["alternatives"][0]) == 3
    alone = server.client.post("/translate", json={**body, "q": "w1 w1"}).json()
    assert alone["alternatives"] == first["alternatives"][0]


def test_the_root_is_generate_for_clients_that_know_only_an_address(server: Running) -> None:
    assert server.client.post("/", json={"inputs": "w3"}).json()[0] == {
        "generated_text": expected("w3"),
        "details": None,
    }
    streamed = events_of(server.client.post("/", json={"inputs": "w3", "stream": True}))
    assert streamed[-1]["generated_text"] == expected("w3")


def test_the_small_routes(server: Running) -> None:
    client = server.client
    [english] = client.get("/languages").json()[:1]
    assert english == {"code": "en", "name": "English", "targets": ["de"]}
    assert client.get("/health").json() == {"status": "ok"}
    info = client.get("/info").json()
    assert (info["model_id"], info["drafter"], info["block_size"]) == ("toy", "block", 5)
    assert info["kernels"].endswith("kernels") or "kernels (" in info["kernels"]
    assert "specdec_rounds_total" in client.get("/metrics").text
    routes = "/generate /generate_stream /translate /languages /health /info /metrics"
    assert set(client.get("/openapi.json").json()["paths"]) >= set(routes.split())
    docs = client.get("/docs").text
    assert "swagger" in docs
    assert "http://" not in docs.replace("http://127.0.0.1", "")
    assert "https://" not in docs
    paths = ("/", "/page.css", "/page.js", "/icon.svg")
    assert [client.get(path).status_code for path in paths] == [200] * len(paths)
    wait_until(lambda: all(num_answered(server, path, 200) for path in paths))


PARAMETERS = {
    "temperature": -1,
    "beta": 0,
    "tau": -0.5,
    "block_size": 0,
    "max_new_tokens": 41,
    "seed": -1,
    "top_p": 1.5,
    "do_sample": "perhaps",
    "repetition_penalty": 1.2,
    "top_k": 5,
    "split_sentences": 3,
    "hint": "t1",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_wish_that_cannot_be_is_named(server: Running, name: str) -> None:
    body = {"inputs": "w1", "parameters": {name: PARAMETERS[name]}}
    response = server.client.post("/generate", json=body)
    check_error(response, 422, "validation")
    assert name in response.json()["error"]


def check_error(response: httpx.Response, status: int, kind: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    assert body["error_type"] == kind
    assert body["error"].endswith(".")
    assert "\n" not in body["error"]
    assert body["request_id"] == response.headers["x-request-id"]


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "bad_request"),
        (b"{", 400, "bad_request"),
        (b'{"inputs": "caf\xe9"}', 400, "bad_request"),
        (b"[" * 1500, 400, "bad_request"),
        (b'"w1"', 400, "bad_request"),
        (b"1" * 1900, 400, "bad_request"),
        (b"{}", 422, "validation"),
        (b'{"inputs": 3}', 422, "validation"),
        (b'{"inputs": "\\ud800"}', 400, "bad_request"),
        (b'{"inputs": "w1", "parameters": {"tau": Infinity}}', 422, "validation"),
        (b'{"inputs": "w1", "parameters": {"seed": 1' + b"0" * 30 + b"}}", 422, "validation"),
        (b'{"inputs": "w1", "parameters": []}', 422, "validation"),
        (b'{"inputs": "' + b"w1 " * 21 + b'"}', 413, "too_large"),
        (b'{"inputs": "' + b"w1 " * 200 + b'"}', 413, "too_large"),
        (b'{"inputs": "' + b"w1 " * 1000 + b'"}', 413, "too_large"),
    ],
)
@pytest.mark.parametrize("route", ["/generate", "/generate_stream"])
def test_bad_bodies(server: Running, route: str, body: bytes, status: int, kind: str) -> None:
    check_error(server.client.post(route, content=body, headers=JSON), status, kind)


def test_an_oversize_body_is_answered_although_the_client_still_writes(server: Running) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"inputs": "'
        for _ in range(100):
            yield b"w1 " * 50

    for content in (chunks(), *[b'{"inputs": "' + b"x" * 14_000 + b'"}'] * 20):
        answer = server.client.post("/generate", content=content, headers=JSON)
        check_error(answer, 413, "too_large")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"source": "fr"}, 400),
        ({"target": "en"}, 400),
        ({"format": "html"}, 400),
        ({"alternatives": -1}, 422),
        ({"alternatives": 6}, 413),
        ({"q": ["w1"] * 4}, 413),
        ({"q": [1]}, 422),
        ({"q": None}, 422),
        ({"hint": "t1"}, 422),  # nobody here reads any
        ({"hint": ["t1"]}, 422),
        ({"q": ["w1"], "hint": "t1"}, 422),
    ],
)
def test_bad_translations(server: Running, changes: dict[str, Any], status: int) -> None:
    body = {"q": "w1", "source": "en", "target": "de", **changes}
    response = server.client.post("/translate", json=body)
    kinds = {400: "bad_request", 413: "too_large", 422: "validation"}
    check_error(response, status, kinds[status])


def test_addresses_that_do_not_exist(server: Running) -> None:
    check_error(server.client.get("/nothing"), 404, "not_found")
    check_error(server.client.get("/generate"), 405, "method_not_allowed")
    wait_until(lambda: num_answered(server, "other", 404) == 1)


def test_request_ids(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "specdec.serving"):
        given = server.client.get("/health", headers={"X-Request-ID": "my-id.1"})
        forged = server.client.get("/health", headers={"X-Request-ID": "a b status=200"})
    assert given.headers["x-request-id"] == "my-id.1"
    made = forged.headers["x-request-id"]
    assert len(made) == 32
    for request_id in ("my-id.1", made):
        assert any(f"request_id={request_id} " in line for line in caplog.messages)


def test_the_api_key() -> None:
    body = {"q": "w1", "source": "en", "target": "de"}
    with running(api_key="sécret") as there:
        client = there.client
        assert client.get("/info").json()["needs_api_key"]
        for wrong in ({}, {"api_key": "other"}, {"api_key": None}):
            check_error(client.post("/translate", json={**body, **wrong}), 403, "forbidden")
        right = client.post("/translate", json={**body, "api_key": "sécret"})
        assert right.json()["translatedText"] == expected("w1")
        check_error(client.post("/generate", json={"inputs": "w1"}), 403, "forbidden")
        headers = {"Authorization": "Bearer sécret".encode()}
        assert client.post("/generate", json={"inputs": "w1"}, headers=headers).status_code == 200
        assert client.get("/health").status_code == 200


def test_a_server_without_drafter_or_sampling_says_so() -> None:
    with running(toy_model(script=None, samples=False)) as there:
        for name in ("use_drafter", "do_sample"):
            body = {"inputs": "w1", "parameters": {name: True}}
            check_error(there.client.post("/generate", json=body), 422, "validation")
        assert generate(there)["generated_text"] == WANTED
        translation = {"q": "w1", "source": "en", "target": "de", "alternatives": 1}
        check_error(there.client.post("/translate", json=translation), 422, "validation")
        info = there.client.get("/info").json()
        assert (info["drafter"], info["max_alternatives"]) == (None, 0)


def test_hints_save_rounds_and_change_no_word() -> None:
    """One for each sentence where there are as many, else all of it for each; nonsense, too."""
    model = toy_model()
    verifier = model.decoder.verifier
    drafter = build_drafter("hint", DraftContext(verifier))
    method = replace(model.decoder.method, drafter=drafter)
    model = replace(
        model,
        decoder=SpeculativeDecoder(verifier, method, EngineConfig(max_rows=4)),
        settings=replace(model.settings, drafter="hint"),
    )
    right = expected("w5 w2.") + ". " + expected("w7")
    text, wanted = "w5 w2. w7", f"{expected('w5 w2.')} {expected('w7')}"
    with running(model) as there:
        rounds = {}
        for hint in (None, "", right, "Unsinn \U0001f600 " * 20, expected("w7")):
            answer = generate(there, text, hint=hint, details=True)
            assert answer["generated_text"] == wanted
            told = answer["details"]["speculation"]
            rounds[hint] = [one["rounds"] for one in told]
        lengths = [len(expected_ids(sentence)) for sentence in ("w5 w2.", "w7")]
        assert rounds[None] == rounds[""] == lengths
        assert rounds[right] == [-(-n // 6) for n in lengths]
        assert rounds[expected("w7")][1] == rounds[right][1]
        body = {"q": [text, "w7"], "source": "en", "target": "de", "hint": [right, ""]}
        answer = there.client.post("/translate", json=body).json()
        assert answer["translatedText"] == [wanted, expected("w7")]


class Recorded(ToyCodec):
    """Notes how many tokens are read for a text at most."""

    longest = 0

    def text(self, tokens: Sequence[str]) -> str:
        self.longest = max(self.longest, len(tokens))
        return super().text(tokens)


def test_a_stream_does_not_read_its_tokens_again_and_again() -> None:
    codec = Recorded()
    with running(toy_model(codec=codec)) as there:
        events = events_of(there.client.post("/generate_stream", json={"inputs": "w0"}))
    assert len(events) == 40
    assert codec.longest <= 2
