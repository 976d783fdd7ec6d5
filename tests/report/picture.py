"""Creates docs/report.png of the README: `python -m tests.report.picture FILE.png` compiles and verifies GPT-2.

The picture ends after the errors by layer. It is light, or dark with `--dark`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.report.browser import find, running

COMMAND = "-m bringup verify gpt2 --checkpoint dummy --target cpu --report report.html"
WIDTH = 1200


def main(out: Path, *, dark: bool) -> None:
    """Needs a Chromium."""
    command = find()
    assert command, "there is no Chromium here: apt-get install chromium"
    with tempfile.TemporaryDirectory() as folder, running(command) as browser:
        subprocess.run([sys.executable, *COMMAND.split()], cwd=folder, check=True)
        page = browser.open(Path(folder, "report.html"), width=WIDTH, dark=dark)
        end = page("document.getElementById('errors').getBoundingClientRect().bottom + scrollY")
        out.write_bytes(page.screenshot(height=round(end)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), dark="--dark" in sys.argv)
