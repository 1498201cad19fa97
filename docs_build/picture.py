"""The picture on the home page of the documentation: a failure of `tokenwire demo` in Chromium.

python -m docs_build.picture         write docs/report-light.png and docs/report-dark.png; needs chromium
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from docs_build.published import ROOT

_SHOWN = "logprobs-incremental"
"""The violation of the demo whose events show the most."""
_SCHEMES = {"dark": 0, "light": 1}
"""The numbers of color schemes in Chromium."""
_QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_QUIET += ["--hide-scrollbars", "--window-size=1000,900"]


def main() -> int:
    """Check the server of the demo, and take the pictures. Return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tokenwire", "demo", "--no-open", "--report", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        page = Path(folder) / "report.html"
        alone = f"main > :not(#{_SHOWN}) {{ display: none }}</style>"
        page.write_text(page.read_text("utf-8").replace("</style>", alone, 1), "utf-8")
        for scheme, number in _SCHEMES.items():
            picture = ROOT / "docs" / f"report-{scheme}.png"
            chosen = f"--blink-settings=preferredColorScheme={number}"
            profile = f"--user-data-dir={Path(folder) / scheme}"
            browser = ["chromium", *_QUIET, profile, chosen, f"--screenshot={picture}", page.as_uri()]
            subprocess.run(browser, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
