"""The picture in docs/serving.md: the page of a running server, after one translation.

    python -m benchmarks.serving.screenshot --output docs/serving-page.png

needs selenium, Chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

from specdec_plugins.errors import Parser

_TEXT = "A young girl wearing a red dress is eating an ice cream. Two dogs run through the snow."
_PATIENCE = 120  # seconds


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks.serving.screenshot", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8080")
    add("--output", required=True, metavar="FILE.png")
    add("--text", default=_TEXT)
    add("--width", type=int, default=1100, help="of the window, in pixels; 375 is a phone's")
    add("--scheme", choices=("light", "dark"), default="light")
    add("--runs", type=int, default=3, help="translations; the last one is shown, warmed up")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        feature = {"name": "prefers-color-scheme", "value": args.scheme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        size = {"width": args.width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for _ in range(args.runs):
            _translate(driver, args.url, args.text)
        height = driver.execute_script("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": args.width, "height": height, "scale": 1}
        how = {"captureBeyondViewport": True, "clip": clip}
        picture = driver.execute_cdp_cmd("Page.captureScreenshot", how)["data"]
    finally:
        driver.quit()
    Path(args.output).write_bytes(base64.b64decode(picture))
    return 0


def _translate(driver: webdriver.Chrome, url: str, text: str) -> None:
    driver.get(url)
    wait = WebDriverWait(driver, _PATIENCE)
    wait.until(lambda d: d.find_element("id", "model").text)
    source = driver.find_element("id", "source")
    source.clear()
    source.send_keys(text)
    driver.find_element("id", "go").click()
    wait.until(lambda d: d.find_elements("css selector", "#verdict strong"))
    # Nothing of what was clicked is left to see.
    driver.execute_script("document.activeElement.blur()")


if __name__ == "__main__":
    sys.exit(main())
