"""The picture on the home of the documentation: the report of `tokenwire demo`, as Chromium shows it.

python -m docs_build.picture         write docs/report-light.png and docs/report-dark.png anew

It needs selenium, chromium and chromedriver: `nox -s picture` has the first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from docs_build.published import ROOT

_WIDTH, _HEIGHT = 1000, 940
_SHOWN = "logprobs-incremental"
"""The mistake of the demo whose ribbon tells most."""


def main() -> int:
    """Check the demo's server, and take the pictures. Gives the exit status."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tokenwire", "demo", "--no-open", "--report", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        # The driver is named: selenium would look for one in the network.
        browser: Any = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            size = {"width": _WIDTH, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            for scheme in ("light", "dark"):
                media = [{"name": "prefers-color-scheme", "value": scheme}]
                browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
                browser.get((Path(folder) / "report.html").as_uri())
                player = f"#{_SHOWN} .player"
                browser.execute_script("document.querySelector(arguments[0]).scrollIntoView()", player)
                for _ in range(2):
                    browser.execute_script(f"document.querySelector('{player} [data-go=\"1\"]').click()")
                browser.save_screenshot(str(ROOT / "docs" / f"report-{scheme}.png"))
        finally:
            browser.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
