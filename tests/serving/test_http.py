"""The routes over real sockets: answers, errors, limits."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.requests import BeamParams, DecodeParams, Request
from specdec_plugins.errors import UnreadableError
from specdec_plugins.serving.errors import KINDS
from tests.decoding.toys import TableVerifier
from tests.serving.toys import (
    MAX_LEN,
    TABLE,
    Running,
    ToyCodec,
    expected,
    expected_ids,
    expected_scores,
    running,
    toy_model,
    wait_until,
)

TEXT = "  w0 w1. w5 w2.\n\n w7 "
LANGUAGES = {"source": "en", "target": "de"}
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
WANTED = f"  {expected('w0 w1.')} {expected('w5 w2.')}\n\n {expected('w7')} "


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(max_characters=500, max_body=2000, max_texts=3) as there:
        yield there


def num_answered(server: Running, route: str, code: int) -> float:
    """As the metrics have it, which count an answer once it has been sent."""
    return server.metric("specdec_requests_total", route=route, code=str(code))


def generate(server: Running, inputs: str = TEXT, **parameters: Any) -> dict[str, Any]:
    """The answer of /generate, in detail."""
    body = {"inputs": inputs, "parameters": {"details": True, **parameters}}
    response = server.client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: Running, inputs: str, path: str = "/generate_stream", **body: Any) -> Any:
    """The events of a stream."""
    response = server.client.post(path, json={"inputs": inputs, **body})
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    return [json.loads(block.removeprefix("data:")) for block in blocks]


def ask(server: Running, q: str | list[str] | None, **fields: Any) -> httpx.Response:
    """Of /translate."""
    return server.client.post("/translate", json={"q": q, **LANGUAGES, **fields})


def translate(server: Running, q: str | list[str], **fields: Any) -> dict[str, Any]:
    response = ask(server, q, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def check_error(response: httpx.Response, status: int) -> str:
    """The sentence that it is told in."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body["error_type"] == KINDS[status]
    assert body["error"].endswith(".")
    assert "\n" not in body["error"]
    assert body["request_id"] == response.headers["x-request-id"]
    return str(body["error"])


def test_generate(server: Running) -> None:
    answer = generate(server)
    assert answer["generated_text"] == WANTED
    details, sentences = answer["details"], ("w0 w1.", "w5 w2.", "w7")
    for told in details["speculation"]:
        assert told["rounds"] == len(told["drafted"]) == len(told["accepted"])
    assert details["generated_tokens"] == sum(len(expected_ids(s)) for s in sentences)
    assert details["finish_reason"] == "length"  # w0 never ends
    joined = "".join(t["text"] for t in details["tokens"] if not t["special"])
    assert joined == WANTED.rstrip()
    assert answer["truncated"]
    assert generate(server, details=False) == {**answer, "details": None}


@pytest.mark.parametrize(
    "parameters",
    [
        {"use_drafter": False},
        {"block_size": 1},
        {"block_size": 25},
        {"beta": 1, "tau": 5.0},
        {"no_repeat_ngram_size": 0},
        {"seed": 7},
        {"max_new_tokens": None, "watermark": False, "stop": [], "best_of": None},
    ],
)
def test_no_way_of_speculating_changes_the_text(
    server: Running, parameters: dict[str, Any]
) -> None:
    assert generate(server, **parameters)["generated_text"] == WANTED


def test_every_answer_tells_how_probable_it_is(server: Running) -> None:
    """Every token, as the verifier's table has it, each sentence, and the text."""
    details = generate(server)["details"]
    wanted = [score for one in ("w0 w1.", "w5 w2.", "w7") for score in expected_scores(one)]
    assert [t["logprob"] for t in details["tokens"]] == pytest.approx(wanted)
    assert details["score"]["mean_logprob"] == pytest.approx(sum(wanted) / len(wanted))
    assert details["score"]["least"]["logprob"] == pytest.approx(min(wanted))
    assert sum(s["score"]["logprob"] for s in details["speculation"]) == pytest.approx(sum(wanted))
    streamed = stream(server, TEXT)
    assert [e["token"]["logprob"] for e in streamed] == pytest.approx(wanted)
    assert streamed[-1]["details"]["score"] == details["score"]
    for form in ("text", "html"):
        [own, none] = translate(server, [TEXT, ""], scores=True, format=form)["scores"]
        assert (len(own), none) == (3, [])
        assert [t["logprob"] for s in own for t in s["tokens"]] == pytest.approx(wanted)
    assert translate(server, TEXT)["scores"] is None


def test_overrides_reach_the_engine(server: Running) -> None:
    def told(**parameters: Any) -> dict[str, Any]:
        [of_sentence] = generate(server, "w0", **parameters)["details"]["speculation"]
        return dict(of_sentence)

    plain = told(use_drafter=False)
    assert (plain["rounds"], set(plain["drafted"])) == (40, {0})
    short = told(block_size=2)
    assert short["rounds"] < 40
    assert max(short["drafted"]) == 2
    assert max(told()["drafted"]) == 5
    assert told(max_new_tokens=3, use_drafter=False)["rounds"] == 3
    tolerant = told(beta=9, tau=100)
    assert tolerant["accepted"][:3] == tolerant["drafted"][:3]
    cut = generate(server, "w0", max_new_tokens=3)
    assert cut["generated_text"] == expected("w0", 3)
    assert cut["details"]["finish_reason"] == "length"
    assert generate(server, "w1")["details"]["finish_reason"] == "eos_token"


def test_sampling_is_reproducible_by_its_seed(server: Running) -> None:
    def sample(**parameters: Any) -> tuple[str, int]:
        answer = generate(server, "w1 w2", do_sample=True, temperature=1.5, **parameters)
        return answer["generated_text"], answer["details"]["seed"]

    assert sample(seed=5)[1] == 5
    assert sample(seed=5) == sample(seed=5)
    assert len({sample(seed=s)[0] for s in range(8)}) > 1
    assert sample()[1] != sample()[1]
    assert sample(seed=5, top_k=1)[0] == expected("w1 w2")


@pytest.mark.parametrize("inputs", [TEXT, "w5", "w0. w1. w2. w3. w4. w5.", "w1\nw1"])
@pytest.mark.parametrize("use_drafter", [True, False])
def test_a_stream_carries_the_same_text_in_order(
    server: Running, inputs: str, use_drafter: bool
) -> None:
    events = stream(server, inputs, parameters={"use_drafter": use_drafter})
    whole = generate(server, inputs, use_drafter=use_drafter)
    assert [event["index"] for event in events] == list(range(len(events)))
    assert [e["generated_text"] for e in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["generated_text"] == whole["generated_text"]
    assert "".join(e["token"]["text"] for e in events).rstrip() == whole["generated_text"].rstrip()
    assert [e["token"]["id"] for e in events] == [t["id"] for t in whole["details"]["tokens"]]
    assert events[-1]["details"]["generated_tokens"] == len(events)


def searched(sentence: str, size: int, num_best: int) -> list[tuple[str, float]]:
    """The best translations of a sentence, with their scores."""
    codec = ToyCodec()
    params = DecodeParams(max_len=MAX_LEN, min_len=1, beam=BeamParams(size, num_best))
    request = Request("alone", codec.source_ids(sentence), params)
    [found] = BeamDecoder(TableVerifier(TABLE)).decode([request])
    return [(codec.text(codec.tokens(h.token_ids)), h.score) for h in found.hypotheses]


def test_a_beam_search_and_its_n_best(server: Running) -> None:
    """While others decode without a beam."""
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(generate, server, TEXT)
        answer = generate(server, "w0 w1", num_beams=4, n_best=3)
        assert beside.result()["generated_text"] == WANTED
    wanted = searched("w0 w1", 4, 3)
    assert answer["generated_text"] == wanted[0][0]
    assert [one["generated_text"] for one in answer["n_best"]] == [text for text, _ in wanted]
    assert [one["score"] for one in answer["n_best"]] == pytest.approx([s for _, s in wanted])
    several = generate(server, TEXT, num_beams=3, n_best=2)
    parts = [searched(sentence, 3, 2) for sentence in ("w0 w1.", "w5 w2.", "w7")]
    for rank, one in enumerate(several["n_best"]):
        texts = [found[rank][0] for found in parts]
        assert one["generated_text"] == "  {} {}\n\n {} ".format(*texts)
        assert one["score"] == pytest.approx(sum(found[rank][1] for found in parts))
    terms = {"w0": "t5 t6 t5"}
    with_term = generate(server, "w0 w1.", glossary=terms)["generated_text"]
    assert "t5 t6 t5" in with_term
    answer = translate(server, "w0 w1.", glossary=terms, alternatives=2)
    assert answer["translatedText"] == with_term
    assert all("t5 t6 t5" in text for text in answer["alternatives"])
    *_, last = stream(server, "w0 w1", parameters={"num_beams": 4})
    assert last["generated_text"] == wanted[0][0]
    assert generate(server, TEXT)["n_best"] is None


def test_a_stream_tells_every_round(server: Running) -> None:
    events = stream(server, "w4")
    rounds = [event["round"] for event in events if event["round"]]
    assert [r["index"] for r in rounds] == list(range(len(rounds)))
    assert sum(len(r["emitted"]) for r in rounds) == len(events)
    assert [event["token"]["id"] for event in events] == expected_ids("w4")
    for r in rounds:
        drafted, emitted, num = r["drafted"], r["emitted"], r["accepted"]
        assert drafted[:num] == emitted[:num]
        assert r["own"] in (None, "bonus" if num == len(drafted) else "correction")
        assert r["ms"] >= r["queue_ms"] >= 0
    assert "correction" in [r["own"] for r in rounds]
    assert rounds[-1]["text"] == expected("w4")
    assert [r["ms"] for r in rounds] == sorted(r["ms"] for r in rounds)


class Dividing(ToyCodec):
    """A sentence of several words never ends, but may be divided; none with an x can be read."""

    def separates(self, line: str, begin: int, end: int) -> bool:
        return True

    def source_ids(self, line: str) -> list[int]:
        if "x" in line:
            raise UnreadableError(f"no letter of {line!r} is known.")
        never = super().source_ids("w0 " * (" " in line))[:-1]
        return never + super().source_ids(line)


def last_of(server: Running, text: str) -> list[dict[str, Any]]:
    """What each route says at its end."""
    of_text = {name: value and value[0] for name, value in translate(server, [text, "w1"]).items()}
    of_text["generated_text"] = of_text["translatedText"]
    answers = [of_text, generate(server, text), stream(server, text)[-1]]
    names = ("generated_text", "truncated", "unreadable")
    return [{name: answer[name] for name in names} for answer in answers]


def test_what_is_cut_is_divided_and_what_stays_cut_is_said_to_be() -> None:
    with running(toy_model(codec=Dividing())) as server:
        incomplete = "specdec_incomplete_sentences_total"
        whole = f"{expected('w1')} {expected('w4')} {expected('w7')}"
        wanted = {"generated_text": whole, "truncated": False, "unreadable": None}
        assert last_of(server, "w1 w4 w7") == [wanted] * 3
        assert server.metric(incomplete, kind="truncated") == 0
        wanted |= {"generated_text": expected("w0"), "truncated": True}
        assert last_of(server, "w0") == [wanted] * 3
        assert server.metric(incomplete, kind="truncated") == 3
        asked = generate(server, "w1 w4", max_new_tokens=6)
        assert (asked["generated_text"], asked["truncated"]) == (expected("w0", 6), True)
        # More than the 20 tokens that the model reads.
        details = generate(server, "w1 " * 25)["details"]
        assert len(details["speculation"]) == 25
        assert (
            "".join(token["text"] for token in details["tokens"]).split()
            == 25 * expected("w1").split()
        )


def test_a_sentence_that_cannot_be_read_is_copied_and_the_answer_says_so() -> None:
    with running(toy_model(codec=Dividing())) as server:
        text = f"{expected('w1.')} x x. {expected('w2')}\n"
        told = {"truncated": False, "unreadable": "no letter of 'x x.' is known."}
        assert last_of(server, "w1. x x. w2\n") == [{"generated_text": text, **told}] * 3
        told["unreadable"] = "no letter of 'x' is known."
        assert last_of(server, "x") == [{"generated_text": "x", **told}] * 3
        tokens = [event["token"]["text"] for event in stream(server, "w1. x x. w2\n")]
        assert "".join(tokens) == text
        assert server.metric("specdec_incomplete_sentences_total", kind="unreadable") == 7


@pytest.mark.parametrize("blank", ["", " \n ", "\t"])
def test_a_text_without_words_stays_as_it_is(server: Running, blank: str) -> None:
    assert generate(server, blank)["generated_text"] == blank
    assert [event["generated_text"] for event in stream(server, blank)] == [blank]
    answer = translate(server, [blank, "w1"], alternatives=1)
    assert answer["translatedText"] == [blank, expected("w1")]
    assert answer["alternatives"][0] == []
    assert "fewer than 1 alternatives" in answer["note"]


@pytest.mark.parametrize(
    ("wanted", "how"),
    [
        (WANTED, {"json": {"q": TEXT, "format": "text", "api_key": "", **LANGUAGES}}),
        ([expected("w3"), WANTED], {"json": {**LANGUAGES, "q": ["w3", TEXT], "source": "auto"}}),
        (WANTED, {"data": {"q": TEXT, **LANGUAGES}}),
        ([expected("w1"), expected("w2")], {"data": {"q": ["w1", "w2"], **LANGUAGES}}),
        # curl -d sends JSON under a form's name.
        (expected("w2"), {"content": json.dumps({"q": "w2", **LANGUAGES}), "headers": FORM}),
        # Editors of Windows put a mark before what they save.
        (expected("w2"), {"content": "\ufeff" + json.dumps({"q": "w2", **LANGUAGES})}),
    ],
    ids=["text", "list", "form", "form of a list", "curl", "mark"],
)
def test_translate(server: Running, wanted: Any, how: dict[str, Any]) -> None:
    response = server.client.post("/translate", **how)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["translatedText"] == wanted
    assert answer["alternatives"] is answer["note"] is None


def test_alternatives_differ_and_are_reproducible(server: Running) -> None:
    texts = ["w1 w1", "w2"]
    first, second = (translate(server, texts, alternatives=3) for _ in range(2))
    assert first == second
    for text, others in zip(first["translatedText"], first["alternatives"], strict=True):
        assert len({text, *others}) == 1 + len(others)
    assert first["translatedText"] == [expected("w1 w1"), expected("w2")]
    for sentence, others in zip(texts, first["alternatives"], strict=True):
        found = dict.fromkeys(text for text, _ in searched(sentence, 4, 4))
        assert others == [text for text in found if text != expected(sentence)][:3]
    assert min(map(len, first["alternatives"])) > 0
    alone = translate(server, "w1 w1", alternatives=3)
    assert alone["alternatives"] == first["alternatives"][0]
    assert (alone["note"] is None) == (len(alone["alternatives"]) == 3)


class Counting(ToyCodec):
    """Counts how often it reads a sentence."""

    num = 0

    def source_ids(self, line: str) -> list[int]:
        self.num += 1
        return super().source_ids(line)


def test_alternatives_are_cut_into_subwords_once_and_what_never_fits_is_not_to_be_retried() -> None:
    codec = Counting()
    with running(toy_model(codec=codec), max_waiting=5) as there:
        translate(there, "w1. w2.", alternatives=2)
        assert codec.num == 2
        assert "no alternatives" in check_error(ask(there, "w1. w2. w3.", alternatives=2), 413)
        assert codec.num == 2
        wait_until(there.is_idle)
        translate(there, "w1. w2.", alternatives=2)


def test_the_root_is_generate_for_clients_that_know_only_an_address(server: Running) -> None:
    answer = server.client.post("/generate", json={"inputs": "w3"}).json()
    assert answer["generated_text"] == expected("w3")
    [root] = server.client.post("/", json={"inputs": "w3"}).json()
    assert root == {**answer, "translation_text": expected("w3")}
    assert stream(server, "w3", "/", stream=True)[-1]["generated_text"] == expected("w3")


def test_the_small_routes(server: Running) -> None:
    client = server.client
    [english] = client.get("/languages").json()[:1]
    assert english == {"code": "en", "name": "English", "targets": ["de"]}
    assert client.get("/health").json() == {"status": "ok"}
    info = client.get("/info").json()
    assert (info["model_id"], info["drafter"], info["block_size"]) == ("toy", "block", 5)
    assert info["max_total_tokens"] == 40
    assert "kernels" in info["kernels"]
    assert "specdec_rounds_total" in client.get("/metrics").text
    routes = "/generate /generate_stream /translate /languages /health /info /metrics"
    assert set(client.get("/openapi.json").json()["paths"]) >= set(routes.split())
    docs = client.get("/docs").text
    assert "swagger" in docs
    assert not re.search(r"https?://(?!127\.0\.0\.1)", docs)
    paths = ("/", "/page.css", "/page.js", "/icon.svg")
    assert [client.get(path).status_code for path in paths] == [200] * len(paths)
    wait_until(lambda: all(num_answered(server, path, 200) for path in paths))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("beta", 0),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-300),
        ("no_repeat_ngram_size", -1),
        ("tau", -0.5),
        ("block_size", 0),
        ("max_new_tokens", 41),
        ("seed", -1),
        ("top_p", 1.5),
        ("do_sample", "perhaps"),
        ("top_k", 5),
        ("split_sentences", 3),
        ("hint", "t1"),
        ("num_beams", 17),
        ("n_best", 2),
        ("glossary", {"w1": ""}),
    ],
)
def test_a_wish_that_cannot_be_is_named(server: Running, name: str, value: Any) -> None:
    body = {"inputs": "w1", "parameters": {name: value}}
    assert name in check_error(server.client.post("/generate", json=body), 422)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b""),
        (400, b"{"),
        (400, b'{"inputs": "caf\xe9"}'),
        (400, b"[" * 1500),
        (400, b'"w1"'),
        (400, b"1" * 1900),
        (400, b'{"inputs": "\\ud800"}'),
        (422, b"{}"),
        (422, b'{"inputs": 3}'),
        (422, b'{"inputs": "w1", "parameters": {"tau": Infinity}}'),
        (422, b'{"inputs": "w1", "parameters": {"seed": 1' + b"0" * 30 + b"}}"),
        (422, b'{"inputs": "w1", "parameters": []}'),
        (422, b'{"inputs": "w1 \\u0000"}'),
        (400, b'{"inputs": "w1", "parameters": {"target_lang": "fr"}}'),
        (413, b'{"inputs": "' + b"w1 " * 200 + b'"}'),
        (413, b'{"inputs": "' + b"w1 " * 1000 + b'"}'),
    ],
)
@pytest.mark.parametrize("route", ["/generate", "/generate_stream"])
def test_bad_bodies(server: Running, route: str, status: int, body: bytes) -> None:
    check_error(server.client.post(route, content=body, headers=JSON), status)


def test_an_oversize_body_is_answered_although_the_client_still_writes(server: Running) -> None:
    chunks = iter([b'{"inputs": "', *[b"w1 " * 50] * 100])
    for content in (chunks, *[b'{"inputs": "' + b"x" * 14_000 + b'"}'] * 20):
        check_error(server.client.post("/generate", content=content, headers=JSON), 413)


@pytest.mark.parametrize(
    ("status", "changes", "told"),
    [
        (400, {"source": "fr"}, ".*'fr'"),
        (400, {"target": "en"}, ".*'en'"),
        (422, {"alternatives": -1}, "alternatives: "),
        (413, {"alternatives": 6}, "6 alternatives exceed"),
        (413, {"q": ["w1"] * 4}, "4 texts exceed"),
        (422, {"q": None}, r"q: Input should be a valid string\.$"),
        (422, {"q": ["w1", None]}, r"q\.1: Input should be a valid string\.$"),
        (422, {"q": [["w1"]]}, r"q\.0: Input should be a valid string\.$"),
        (422, {"q": ["w1", "w2 \0"]}, "text 2: holds a NUL character"),
        (422, {"hint": "t1"}, "'hint' is not supported"),
        (422, {"glossary": {"w1 " * 70: "w2"}}, "glossary.*200 characters"),
    ],
)
def test_bad_translations(server: Running, status: int, changes: dict[str, Any], told: str) -> None:
    assert re.match(told, check_error(ask(server, **{"q": "w1", **changes}), status))


def test_bad_forms(server: Running) -> None:
    for content in (b"q=%ff", b"&" * 1500):
        check_error(server.client.post("/translate", content=content, headers=FORM), 400)


def test_addresses_that_do_not_exist(server: Running) -> None:
    assert "GET /docs" in check_error(server.client.get("/nothing"), 404)
    check_error(server.client.get("/generate"), 405)
    wait_until(lambda: num_answered(server, "other", 404) == 1)


def test_request_ids(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "specdec.serving"):
        given, made = (
            server.client.get("/info", headers={"X-Request-ID": name}).headers["x-request-id"]
            for name in ("my-id.1", "a b status=200")
        )
    assert (given, len(made)) == ("my-id.1", 32)
    for request_id in (given, made):
        wait_until(lambda told=f"request_id={request_id} ": told in caplog.text)


def test_monitors_do_not_fill_the_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "specdec.serving"):
        for path in ("/health", "/metrics", "/info"):
            server.client.get(path)
            wait_until(lambda path=path: f"path='{path}'" in caplog.text)
    told = {r.message.split("path='")[1].split("'")[0]: r.levelname for r in caplog.records}
    assert told == {"/health": "DEBUG", "/metrics": "DEBUG", "/info": "INFO"}


@pytest.mark.parametrize("path", ["/", "/page.js", "/docs", "/health", "/info", "/languages"])
def test_head_is_get_without_a_body(server: Running, path: str) -> None:
    whole, head = server.client.get(path), server.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == whole.headers[name]


def test_a_slash_at_the_end_changes_nothing(server: Running) -> None:
    client = server.client
    assert client.get("/health/").json() == {"status": "ok"}
    assert client.post("/generate/", json={"inputs": "w1"}).json()["generated_text"]
    assert client.post("/translate/", json={"q": "w1", **LANGUAGES}).status_code == 200
    check_error(client.get("/nothing/"), 404)
    check_error(client.get("/generate/"), 405)


def test_pages_of_others_cannot_send_requests_without_being_asked(server: Running) -> None:
    """A browser asks before it sends JSON, but not before it sends a form or plain text."""
    client, body = server.client, {"q": "w1", **LANGUAGES}
    own, foreign = f"http://127.0.0.1:{server.port}", "http://other.example"
    for origin, kind, status in (
        (foreign, "text/plain", 403),
        (foreign, FORM["content-type"], 403),
        ("null", "text/plain", 403),
        (foreign, "application/json", 200),
        (own, "text/plain", 200),
        (own, FORM["content-type"], 200),
    ):
        headers = {"origin": origin, "content-type": kind}
        answer = client.post("/translate", content=json.dumps(body), headers=headers)
        if status == 403:
            assert "application/json" in check_error(answer, 403)
        assert answer.status_code == status, (origin, kind)


def test_the_key_is_asked_for_before_the_body_is_looked_at() -> None:
    with running(api_key="sécret", max_body=1000) as there:
        assert there.client.get("/info").json()["needs_api_key"]
        assert there.client.get("/health").status_code == 200
        right = {"Authorization": "Bearer sécret".encode()}
        asked = {"inputs": "w1"}
        assert there.client.post("/generate", json=asked, headers=right).status_code == 200
        for content in (b"{", b"x" * 5_000, b'{"inputs": "w1"}'):
            for headers in ({}, {"Authorization": "Bearer other"}):
                answer = there.client.post("/generate", content=content, headers=headers)
                check_error(answer, 403)
        wrong = {"Authorization": "Bearer other"}
        check_error(there.client.post("/translate", content=b"{", headers=wrong), 403)
        # Somebody else's credentials are no key; the body may have it.
        body, basic = {"q": "w1", **LANGUAGES}, {"Authorization": "Basic dTpw"}
        for given in ({}, {"api_key": "other"}, {"api_key": None}, {"api_key": "sécret"}):
            answer = there.client.post("/translate", json={**body, **given}, headers=basic)
            assert answer.status_code == (200 if "sécret" in given.values() else 403)
        assert there.metric("specdec_request_failures_total", kind="forbidden") == 10


def test_a_server_without_a_drafter_says_so() -> None:
    with running(toy_model(script=None)) as there:
        body = {"inputs": "w1", "parameters": {"use_drafter": True}}
        check_error(there.client.post("/generate", json=body), 422)
        assert generate(there)["generated_text"] == WANTED
        assert len(translate(there, "w1", alternatives=1)["alternatives"]) == 1
        assert there.client.get("/info").json()["drafter"] is None
