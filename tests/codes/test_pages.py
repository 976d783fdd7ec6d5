"""`bringup explain CODE` shows a mistake that can be made: every page's example is run, and fails as it says."""

from __future__ import annotations

import re
import shutil

import pytest

from bringup.adapters.sources.remote import client
from tests.codes.commands import run
from tests.codes.pages import Page, missing, pages, with_free_ports

EXIT = {"0": 2, "9": 3}  # by a code's first digit; every other error is the model's: 1
SLOW = re.compile(r"\b(bringup|python \S+) (compile|verify)\b|bringup\.build|import torch")
# Compiles and verifications that stop before anything is exported.
QUICK = {
    "BU006", "BU007", "BU008", "BU012", "BU226", "BU231", "BU232", "BU241", "BU303", "BU706", "BU708", "BU901",
    "BU402", "BU412", "BU903", "BU922",
}  # fmt: skip


def compiles(page: Page) -> bool:
    typed = [*(command.line for command in page.commands), *page.files.values()]
    return page.code not in QUICK and any(map(SLOW.search, typed))


def _case(page: Page) -> object:
    return pytest.param(page, id=page.code, marks=pytest.mark.slow if compiles(page) else ())


@pytest.mark.parametrize("page", [_case(page) for page in pages()])
def test_the_example_fails_as_the_page_says(page, workshop, tmp_path, monkeypatch):
    """The last command gives the page's code, and every line under a command is among what it prints, in order.

    Requests are repeated without a pause.
    """
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.0)
    page = with_free_ports(page)
    assert page.commands, f"{page.code}.md shows no example"
    folder = tmp_path / "example"
    shutil.copytree(workshop, folder)
    for name, text in page.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for command in page.commands:
        status, printed = run(command.line, folder)
        assert missing(command.output, printed) == [], printed
    raised = f"BringupError: {page.code}: " in printed  # from a script that calls bringup
    severity = re.search(rf"(error|warning|note)\[{page.code}\]", printed)
    assert raised or severity, f"{page.code} is not told:\n{printed}"
    if raised:
        assert status == 1, printed
    elif severity[1] == "error":
        assert status == EXIT.get(page.code[2], 1), printed


def test_the_port_of_a_page_is_replaced():
    """By a free one, in its files, commands and output."""
    for page in (page for page in pages() if page.code in ("BU630", "BU631", "BU914", "BU915", "BU916", "BU917")):
        found = with_free_ports(page)
        before, after = ([*p.files.values(), *(c.line for c in p.commands), *(o for c in p.commands for o in c.output)]
                         for p in (page, found))  # fmt: skip
        (port,) = {port for text in before for port in re.findall(r"\b(?:80\d\d|8765)\b", text)}
        (free,) = {port for text in after for port in re.findall(r'(?:127\.0\.0\.1(?::|", )|--port", ")(\d+)', text)}
        assert [text.replace(port, free) for text in before] == after
        assert free != port
