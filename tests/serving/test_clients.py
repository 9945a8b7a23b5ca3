"""Clients of other servers, as they are, and the routes of LibreTranslate's that they use."""

from __future__ import annotations

import gzip
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.test_http import LANGUAGES, ask, check_error, translate
from tests.serving.toys import Polyglot, Running, ToyCodec, expected, running, toy_model

PAGE = '<!-- w0 --><p class="w1">w4 w1.</p>\n<p>w5.</p>'
DONE = f'<!-- w0 --><p class="w1">{expected("w4 w1.")}</p>\n<p>{expected("w5.")}</p>'


@pytest.fixture(scope="module", autouse=True)
def no_files_are_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("files")))
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(max_characters=500, max_texts=3, max_body=1000, max_file=5000) as there:
        yield there


def url(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_libretranslatepy(server: Running) -> None:
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(url(server))
    assert client.translate("w4 w1", "en", "de") == expected("w4 w1")
    assert client.translate("w4 w1", "auto", "de") == expected("w4 w1")
    [first, *_] = client.detect("Where is the station, and when does it open?")
    assert first["language"] == "en"
    assert 50 < first["confidence"] <= 100
    english, german = client.languages()
    assert (english["code"], english["name"], german["name"]) == ("en", "English", "German")


def test_huggingface_hub(server: Running) -> None:
    client = pytest.importorskip("huggingface_hub").InferenceClient(model=url(server))
    assert client.translation("w4 w1").translation_text == expected("w4 w1")
    said = client.translation("w4 w1", src_lang="en_XX", tgt_lang="de_DE")
    assert said.translation_text == expected("w4 w1")
    assert client.text_generation("w4 w1") == expected("w4 w1")


def test_markup_stays(server: Running) -> None:
    assert translate(server, PAGE, format="html")["translatedText"] == DONE
    answer = translate(server, [PAGE, "<p>w5."], format="html", alternatives=1)
    assert answer["translatedText"] == [DONE, f"<p>{expected('w5.')}"]
    plain = translate(server, "w5.", alternatives=1)["alternatives"]
    assert answer["alternatives"][1] == [f"<p>{one}" for one in plain]
    assert re.findall("<.*?>", answer["alternatives"][0][0]) == re.findall("<.*?>", PAGE)
    assert "'text' or 'html'" in check_error(ask(server, PAGE, format="pdf"), 422)


def test_a_page_that_names_another_encoding(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A string of JSON has none."""
    monkeypatch.setattr(ToyCodec, "text", lambda *_: "\xe9")
    answer = translate(server, "<meta charset=iso-8859-1><p>w5.", format="html")
    assert answer["translatedText"] == "<meta charset=iso-8859-1><p>\xe9"


def test_a_page_of_more_texts_than_a_request_may_have(server: Running) -> None:
    words = ["w4", "w1", "w5", "w7", "w8", "w6", "w4 w1", "w1 w4"]
    page = "".join(f"<p>{word}</p>" for word in words)
    answer = translate(server, page, format="html")
    assert answer["translatedText"] == "".join(f"<p>{expected(w)}</p>" for w in words)


def send(server: Running, name: str, data: bytes, **fields: str) -> Any:
    files = {"file": (name, io.BytesIO(data))}
    return server.client.post("/translate_file", data={**LANGUAGES, **fields}, files=files)


def send_parts(server: Running, path: str, fields: dict[str, str], charset: str = "utf-8") -> Any:
    """As httpx never does: with what is no UTF-8 (`surrogateescape`), or any name of a file."""
    part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    body = "".join(part.format(*field) for field in fields.items()) + "--x--\r\n"
    headers = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
    data = body.encode(errors="surrogateescape")
    return server.client.post(path, content=data, headers=headers)


def test_a_file_is_translated_and_fetched(server: Running) -> None:
    answer = send(server, "page.html", PAGE.encode())
    assert answer.status_code == 200, answer.text
    address = answer.json()["translatedFileUrl"]
    assert address.startswith(url(server) + "/download_file/")
    file = server.client.get(address)
    assert file.text == DONE
    assert file.headers["content-type"] == "application/octet-stream"  # never shown as a page
    assert 'filename="page.html"' in file.headers["content-disposition"]
    assert server.client.head(address).status_code == 200


def test_the_name_of_a_file_leads_nowhere_else(server: Running) -> None:
    answer = send(server, "../../etc/näme w1.txt", b"w4 w1\n")
    file = server.client.get(answer.json()["translatedFileUrl"])
    assert file.text == expected("w4 w1") + "\n"
    for name in ("..%2f..%2fetc%2fpasswd", "0" * 32 + ".txt", "passwd", "0" * 32 + "." + "0" * 300):
        check_error(server.client.get(f"/download_file/{name}"), 404)


@pytest.mark.parametrize("name", ["数据" * 100 + ".txt", "ü" * 300 + ".txt", "a\0b.txt"])
def test_a_name_that_no_file_can_have_is_shortened(server: Running, name: str) -> None:
    fields = {**LANGUAGES, f'file"; filename="{name}': "w4 w1\n"}
    answer = send_parts(server, "/translate_file", fields)
    assert answer.status_code == 200, answer.text
    file = server.client.get(answer.json()["translatedFileUrl"])
    assert file.text == expected("w4 w1") + "\n"
    assert file.headers["content-disposition"].endswith((".txt", '.txt"'))


@pytest.mark.parametrize(
    ("name", "data", "fields", "status", "told"),
    [
        ("a.exe", b"w1", {}, 400, "unknown kind"),
        ("a.txt", b"\x7fELF\0", {}, 400, "not a text file"),
        ("a.po", b'msgid "a', {}, 400, "line 1"),
        ("a.txt", b"w1", {"target": "fr"}, 400, "'fr'"),
        ("a.txt", b"w1 " * 2000, {}, 413, "larger than 5000"),
        ("a.txt", b"w1 " * 400, {}, 413, "characters"),
    ],
)
def test_a_file_that_cannot_be_translated(
    server: Running, name: str, data: bytes, fields: dict[str, str], status: int, told: str
) -> None:
    assert told in check_error(send(server, name, data, **fields), status)


def test_a_file_must_be_one(server: Running) -> None:
    assert "file" in check_error(server.client.post("/translate_file", data=LANGUAGES), 422)
    answer = server.client.post("/translate_file", json={**LANGUAGES, "file": "w1"})
    assert check_error(answer, 422) == "file: Send a part with a filename."
    files = {"q": ("a.txt", b"w1")}
    check_error(server.client.post("/translate", data=LANGUAGES, files=files), 422)


def test_a_file_may_be_larger_than_other_bodies(server: Running) -> None:
    answer = send(server, "a.txt", b"w4 w1\n" * 500)
    file = server.client.get(answer.json()["translatedFileUrl"])
    assert file.text == f"{expected('w4 w1')}\n" * 500


def test_files_that_nobody_fetches_are_removed(server: Running, monkeypatch: Any) -> None:
    first = send(server, "a.txt", b"w4 w1\n").json()["translatedFileUrl"]
    monkeypatch.setattr("specdec_plugins.serving.documents._KEPT", -1.0)
    send(server, "b.txt", b"w4 w1\n")
    check_error(server.client.get(first), 404)


def test_another_users_folder_is_not_used(
    server: Running, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"specdec-{os.getuid()}").mkdir(mode=0o755)
    assert "belongs to somebody else" in check_error(send(server, "a.txt", b"w1"), 500)


def test_bodies_of_several_parts(server: Running) -> None:
    parts = {name: (None, value) for name, value in {**LANGUAGES, "q": "w4 w1"}.items()}
    answer = server.client.post("/translate", files=parts)
    assert answer.json()["translatedText"] == expected("w4 w1")
    headers = {"content-type": "multipart/form-data; boundary=x"}
    check_error(server.client.post("/translate", content=b"--y", headers=headers), 400)
    for charset in ("utf-16", "punycode", "undefined"):  # it is UTF-8, whatever it says
        answer = send_parts(server, "/translate", {**LANGUAGES, "q": "w4 w1"}, charset)
        assert answer.json()["translatedText"] == expected("w4 w1")
    answer = send_parts(server, "/translate", {**LANGUAGES, "q": "\udcfcber"})
    assert "form cannot be read" in check_error(answer, 400)
    headers = {"content-type": "multipart/mixed; boundary=x"}
    assert "multipart/mixed" in check_error(
        server.client.post("/translate", content=b"--x", headers=headers), 415
    )


def test_a_compressed_body_is_said_not_to_be_read(server: Running) -> None:
    body, headers = gzip.compress(b'{"q": "w1"}'), {"content-encoding": "gzip"}
    answer = server.client.post("/translate", content=body, headers=headers)
    assert check_error(answer, 415) == "A body in gzip is not read; send it uncompressed."


def test_the_language_is_detected(server: Running) -> None:
    for source in ("auto", "en"):  # digits tell no language
        assert translate(server, "4", source=source)["detectedLanguage"] is None
    french = {"q": ["Où est la gare, s'il vous plaît ?", "Je ne sais pas."]}
    assert server.client.post("/detect", json=french).json()[0]["language"] == "fr"
    assert server.client.post("/detect", json={"q": "123"}).json() == []
    check_error(server.client.post("/detect", json={}), 422)


def test_a_model_of_several_languages_reads_the_one_that_is_detected(monkeypatch: Any) -> None:
    codec = Polyglot()
    text, pair = "Où est la gare, s'il vous plaît ?", {"source": "auto", "target": "IT"}
    with running(toy_model(codec=codec)) as server:
        assert translate(server, text, **pair)["detectedLanguage"]["language"] == "fra_Latn"
        assert codec.asked[-1] == ("fra_Latn", "ita_Latn")
        found = translate(server, [text, "Je ne sais pas."], **pair)["detectedLanguage"]
        assert [one["language"] for one in found] == ["fra_Latn"] * 2
        page = f"<style>{'body { color: red; } ' * 100}</style><p>{text}</p>"
        answer = translate(server, page, **pair, format="html")
        assert answer["detectedLanguage"]["language"] == "fra_Latn"
        answer = translate(server, text, source="German", target="IT")
        assert answer["detectedLanguage"] is None
        assert codec.asked[-1] == ("deu_Latn", "ita_Latn")

        def without(*_: Any) -> Any:
            raise ModuleNotFoundError(name="py3langid")

        monkeypatch.setattr("importlib.import_module", without)
        told = check_error(ask(server, text, **pair), 400)
        assert "py3langid is not installed" in told
        assert "name the language" in told
        told = check_error(server.client.post("/detect", json={"q": "Bonjour"}), 501)
        assert "py3langid is not installed" in told


def test_what_clients_ask_before_they_show_anything(server: Running) -> None:
    settings = server.client.get("/frontend/settings").json()
    assert settings["language"] == {
        "source": {"code": "en", "name": "English"},
        "target": {"code": "de", "name": "German"},
    }
    assert (settings["charLimit"], settings["keyRequired"]) == (500, False)
    assert {".po", ".docx", ".html"} <= {*settings["supportedFilesFormat"]}
    assert settings["filesTranslation"]


ELSEWHERE = {"origin": "https://example.com"}


def test_pages_elsewhere_may_use_the_server_if_the_operator_says_so(server: Running) -> None:
    asked = {**ELSEWHERE, "access-control-request-method": "POST"}
    body = {**LANGUAGES, "q": "w4"}
    assert server.client.options("/translate", headers=asked).status_code == 405
    plain = server.client.post("/translate", json=body, headers=ELSEWHERE)
    assert "access-control-allow-origin" not in plain.headers
    check_error(server.client.post("/translate", data=body, headers=ELSEWHERE), 403)
    with running(allow_origins="https://a.example, https://Example.com/") as open_server:
        client = open_server.client
        allowed = client.options("/translate", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://example.com"
        for answer in (
            client.post("/translate", json=body, headers=ELSEWHERE),
            client.post("/translate", data=body, headers=ELSEWHERE),
            client.post("/translate", json={}, headers=ELSEWHERE),
        ):
            assert answer.headers["access-control-allow-origin"] == "https://example.com"
        other = {"origin": "https://other.example"}
        check_error(client.post("/translate", data=body, headers=other), 403)


def test_a_key_may_be_in_the_body() -> None:
    with running(api_key="secret") as server:
        body = {**LANGUAGES, "q": "w4", "api_key": "secret"}
        for path in ("/translate", "/detect"):
            fields = body if path == "/translate" else {"q": "w4", "api_key": "secret"}
            assert server.client.post(path, data=fields).status_code == 200
            check_error(server.client.post(path, data={**fields, "api_key": "no"}), 403)
        assert send(server, "a.txt", b"w4", api_key="secret").status_code == 200
        check_error(send(server, "a.txt", b"w4"), 403)
        assert server.client.get("/frontend/settings").json()["keyRequired"]
