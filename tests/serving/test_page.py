"""The page in a real browser: Chromium without a window, driven through chromedriver.

Where there is no browser these tests are skipped, and the reason is told; with
REQUIRE_BROWSER=1 in the environment they fail instead. CHROMIUM and CHROMEDRIVER may name the
two programs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.toys import (
    Polyglot,
    Running,
    expected,
    expected_ids,
    running,
    toy_model,
    wait_until,
)

SENTENCE = "w4 w1"
DRAFTED = ".accepted, .rejected"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def missing(what: str) -> Any:
    reason = f"{what} is not here; install it, or let the page go untested"
    if os.environ.get("REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def program(variable: str, *names: str) -> str:
    found = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    return found or missing(" or ".join(names))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        from selenium import webdriver
    except ModuleNotFoundError:
        missing("the Python package selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = program("CHROMIUM", "chromium", "chromium-browser", "google-chrome")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(program("CHROMEDRIVER", "chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        yield driver


class Page:
    """What a person does on the page, and what they see."""

    def __init__(self, driver: Any, server: Running) -> None:
        self.driver = driver
        self.server = server
        driver.get(f"http://127.0.0.1:{server.port}/")
        wait_until(lambda: self.text("#model") != "")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str, within: Any = None) -> list[Any]:
        found: list[Any] = (within or self.driver).find_elements("css selector", selector)
        return found

    def counts(self, selector: str) -> list[int]:
        """How many there are in each round."""
        return [len(self.all(selector, row)) for row in self.all("#rounds-spec > li")]

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def type(self, text: str) -> None:
        self.find("#source").clear()
        self.find("#source").send_keys(text)

    def translate(self, text: str = SENTENCE) -> None:
        self.type(text)
        self.find("#go").click()

    def wait_for_both(self) -> None:
        """Until the speculative and the plain run are over."""
        wait_until(lambda: bool(self.all("#verdict strong")) or self.find("#error").is_displayed())

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def complaints(self) -> list[Any]:
        """What the console says since it was last asked; refused requests are the tests' own."""
        log = self.driver.get_log("browser")
        return [entry for entry in log if "status of 4" not in entry["message"]]


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    with running(max_characters=500) as server:
        there = Page(chromium, server)
        yield there
        complaints = there.complaints()
        # Left while its server is there; what it still asks for would count for the next test.
        chromium.get("about:blank")
        there.complaints()
        assert complaints == []


def test_a_translation_appears_with_its_rounds(page: Page) -> None:
    assert not page.find("#lanes").is_displayed()
    page.type(SENTENCE)
    page.find("#source").send_keys("\ue009\ue007")  # control and enter
    page.wait_for_both()
    assert page.text("#text") == expected(SENTENCE)
    body = {"inputs": SENTENCE, "parameters": {"details": True}}
    answer = page.server.client.post("/generate", json=body).json()
    [told] = answer["details"]["speculation"]
    assert page.counts(DRAFTED) == told["drafted"]
    assert page.counts(".accepted") == told["accepted"]
    assert page.all("#rounds-spec .correction")
    num_tokens = len(expected_ids(SENTENCE))
    assert len(page.all("#rounds-plain > li")) == num_tokens
    assert len(page.all("#bars-plain i")) == num_tokens
    assert len(page.all("#bars-spec i")) == told["rounds"]
    assert "the same text" in page.text("#verdict")
    assert f"instead of {num_tokens} steps" in page.text("#verdict")
    # Nothing comes from elsewhere.
    script = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    loaded = page.driver.execute_script(script)
    assert len(loaded) >= 4
    assert all(url.startswith(f"http://127.0.0.1:{page.server.port}/") for url in loaded)


def test_blocks_are_shown_before_the_sentence_is_complete(page: Page) -> None:
    verifier = page.server.verifier
    verifier.allow(2)
    page.translate("w0")
    wait_until(lambda: len(page.all("#rounds-spec > li")) == 2)
    shown = page.text("#text")
    assert shown
    assert expected("w0").startswith(shown)
    assert page.find("#stop").is_displayed()
    page.find("#stop").click()
    verifier.allow(None)
    wait_until(page.server.is_idle)
    assert not page.find("#stop").is_displayed()
    assert page.text("#text") == shown


def test_bars_shrink_as_rounds_come_and_are_not_drawn_anew(page: Page) -> None:
    """At every round, that froze the page for a text of some pages."""
    page.server.verifier.allow(2)
    page.translate("w0")
    wait_until(lambda: len(page.all("#bars-spec i")) == 2)
    first = page.find("#bars-spec i")
    width = first.rect["width"]
    page.server.verifier.allow(None)
    page.wait_for_both()
    assert 0 < first.rect["width"] < width


def test_a_slider_changes_the_next_run(page: Page) -> None:
    page.translate()
    page.wait_for_both()
    assert max(page.counts(DRAFTED)) == 5
    page.find("#block").send_keys("\ue012" * 3)  # left arrow
    assert page.text("#block-value") == "2"
    wait_until(
        lambda: max(page.counts(DRAFTED), default=9) <= 2 and bool(page.all("#verdict strong"))
    )
    assert page.text("#text") == expected(SENTENCE)
    assert "exact" in page.text("#guarantee")
    page.find("#beta").send_keys("\ue014")  # right arrow
    assert page.text("#beta-value") == "2"
    assert "may change" in page.text("#guarantee")


def test_several_sentences_and_lines(page: Page) -> None:
    page.translate("w4 w1. w5.\nw7")
    page.wait_for_both()
    assert page.text("#text") == f"{expected('w4 w1.')} {expected('w5.')}\n{expected('w7')}"
    headings = [h.text for h in page.all("#rounds-spec .sentence")]
    assert headings == ["Sentence 1", "Sentence 2", "Sentence 3"]
    assert len(page.all("#bars-spec .bar")) == 3


def test_errors_are_said_in_a_sentence(page: Page) -> None:
    alert = page.find("#error")
    assert alert.get_attribute("role") == "alert"
    page.translate("w1 " * 300)
    wait_until(alert.is_displayed)
    assert "characters" in alert.text
    page.translate("w1 " * 30)
    wait_until(lambda: "more than the" in alert.text)
    assert alert.text.startswith("A sentence is copied: has 30 tokens, more than the")
    assert page.text("#text").startswith("w1 w1")
    page.translate("w0")
    wait_until(lambda: "The end of a sentence is missing" in alert.text)
    page.server.verifier.allow(2)
    page.translate("w0")
    wait_until(page.find("#stop").is_displayed)
    page.translate("  ")
    wait_until(lambda: alert.text == "Type a sentence first.")
    assert not page.find("#stop").is_displayed()
    page.server.verifier.allow(None)
    page.server.verifier.poison = 3
    page.translate("w3")
    wait_until(lambda: "could not be decoded" in alert.text)
    page.translate(SENTENCE)
    page.wait_for_both()
    assert not alert.is_displayed()
    assert page.text("#text") == expected(SENTENCE)
    page.driver.execute_script("window.fetch = () => Promise.reject(new TypeError('gone'))")
    page.translate()
    wait_until(alert.is_displayed)
    assert "cannot be reached" in alert.text


DROP = """
const moved = new DataTransfer();
moved.items.add(new File([arguments[1]], arguments[0]));
for (const name of ["dragover", "drop"]) {
  const event = new DragEvent(name, { dataTransfer: moved, bubbles: true, cancelable: true });
  document.querySelector("#source").dispatchEvent(event);
}
"""


def test_a_file_is_translated(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "a b.txt"
    path.write_text("w4 w1.\n\nw5.\n", encoding="utf-8")
    page.find("#file").send_keys(str(path))
    for name in ("a b.txt", "dropped.txt"):
        if name == "dropped.txt":
            page.driver.execute_script(DROP, name, "w4 w1.\n\nw5.\n")
        wait_until(lambda name=name: page.text("#file-done").endswith(f"translation of {name}"))
        link = page.find("#file-done a")
        assert link.get_attribute("download") == name
        file = page.server.client.get(link.get_attribute("href"))
        assert file.text == f"{expected('w4 w1.')}\n\n{expected('w5.')}\n"
    page.driver.execute_script(DROP, "bad.exe", "w4")
    wait_until(page.find("#error").is_displayed)
    assert "unknown kind" in page.text("#error")
    assert page.text("#file-done") == ""
    assert ".docx" in page.find("#file").get_attribute("accept")


@pytest.mark.parametrize("direction", ["rtl", "ltr"])
def test_each_side_is_written_in_its_own_direction(page: Page, direction: str) -> None:
    text = "مرحبا" if direction == "rtl" else "Hello"
    script = """
    const [text] = arguments;
    document.querySelector("#source").value = text;
    document.querySelector("#text").textContent = text;
    const style = (id) => getComputedStyle(document.querySelector(id)).direction;
    return [style("#source"), style("#text")];
    """
    assert page.driver.execute_script(script, text) == [direction] * 2


@pytest.mark.parametrize("width", [320, 375, 1200])
def test_nothing_is_cut_off(page: Page, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.cdp("Emulation.setDeviceMetricsOverride", **size)
    page.translate("w0 w1. w4")
    page.wait_for_both()
    # Wider than its window is what scrolls sideways.
    script = "const { scrollWidth, clientWidth } = document.documentElement;"
    assert page.driver.execute_script(f"{script} return scrollWidth - clientWidth") == 0
    page.cdp("Emulation.clearDeviceMetricsOverride")


def test_a_screen_reader_is_told_everything(page: Page) -> None:
    page.translate()
    page.wait_for_both()
    page.cdp("Accessibility.enable")
    nodes = [n for n in page.cdp("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    sliders = [name for role, name in named if role == "slider"]
    assert [name[0] for name in sliders] == ["B", "T", "M"]
    assert any(role == "textbox" and name.startswith("Text to translate") for role, name in named)
    assert any("accepted" in name and name.startswith("Round 1:") for _, name in named)
    assert all(name for role, name in named if role in ("button", "link", "image", "heading"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(page: Page, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.cdp("Emulation.setEmulatedMedia", features=[feature])
    page.translate()
    page.wait_for_both()
    contrasts = page.driver.execute_script(Path(__file__).with_name("contrast.js").read_text())
    assert len(contrasts) > 20
    assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []


def test_a_model_of_several_languages_lets_one_choose(chromium: Any) -> None:
    codec = Polyglot()
    with running(toy_model(codec=codec)) as server:
        page = Page(chromium, server)
        assert page.find("#languages").is_displayed()
        assert [one.text for one in page.all("#from-choice option")] == [
            "English",
            "French",
            "German",
        ]
        page.find("#to-choice option[value=ita_Latn]").click()
        page.translate()
        page.wait_for_both()
        assert set(codec.asked) == {("eng_Latn", "ita_Latn")}
        assert page.complaints() == []
