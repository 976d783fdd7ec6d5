"""The page in a real browser: it loads nothing, says nothing wrong, and can be read by everybody, everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.browser import DESK, PHONE, Browser, Page
from tests.report.conftest import HOSTILE

LOOKS = Path(__file__).with_name("looks.js").read_text("utf-8")
SECTIONS = ["findings", "stages", "memory", "errors", "modules", "parameters"]
Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Open:
    """Opens a page, ready for the questions of looks.js."""

    def opened(file: Path, **how: object) -> Page:
        page = browser.open(file, **how)  # type: ignore[arg-type]
        page(f"{LOOKS}; globalThis.looks = looks; 0")
        return page

    return opened


def complaints(page: Page) -> list[object]:
    """What the console holds: errors, refusals of the policy, uncaught exceptions."""
    kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    return [event for kind in kinds for event in page.seen(kind)]


def test_it_loads_nothing_and_complains_of_nothing(open_page: Open, written: Path):
    page = open_page(written)
    requests = [event["request"]["url"] for event in page.seen("Network.requestWillBeSent")]
    assert requests == [written.as_uri()]
    assert complaints(page) == []
    assert page("performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_every_section_and_chart_is_there(width: int, open_page: Open, written: Path):
    page = open_page(written, width=width)
    assert [name for name, *_ in page("looks.sections()")] == SECTIONS
    assert all(w > 0.8 * min(width, 1000) and h > 40 and visible for _, w, h, visible in page("looks.sections()"))
    charts = {chart["id"]: chart for chart in page("looks.charts()")}
    assert charts.keys() == {"memory-by-layer", "cache-by-context", "error-by-module"}
    for chart in charts.values():
        assert 0 <= chart["left"] < chart["right"] <= width
        assert chart["height"] > 100
        assert chart["drawn"] >= 8
        assert all(len(words) > 10 for words in chart["said"])


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("page_of", ["written", "hostile", "hostile_graph"])
def test_nothing_leaves_the_window(width: int, page_of: str, open_page: Open, request: pytest.FixtureRequest):
    page = open_page(request.getfixturevalue(page_of), width=width)
    for _ in ("as it opens", "with everything open"):
        assert page("document.documentElement.scrollWidth") <= width
        assert page("looks.outside()") == []
        page("looks.openAll()")


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(dark: bool, open_page: Open, written: Path, hostile: Path):
    for file in (written, hostile):
        page = open_page(file, dark=dark)
        page("looks.openAll()")
        assert page("looks.faint(4.5)") == []
        assert len(page("looks.faint(22)")) > 100, "the question is asked of every text"
    background = page("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 80) == dark


def test_the_tree_opens(open_page: Open, written: Path):
    page = open_page(written)
    row = "[...document.querySelectorAll('.tree summary')].find(e => e.querySelector('code').textContent == 'attn')"
    inside = f"{row}.nextElementSibling.firstElementChild.checkVisibility()"
    assert not page(inside)
    box = page(f"(({row}).scrollIntoView(), {row}.getBoundingClientRect().toJSON())")
    at = {"x": box["x"] + 20, "y": box["y"] + 5, "button": "left", "clickCount": 1}
    page.call("Input.dispatchMouseEvent", type="mousePressed", **at)
    page.call("Input.dispatchMouseEvent", type="mouseReleased", **at)
    assert page(inside)
    assert "c_attn" in page(f"{row}.nextElementSibling.innerText")


def test_keys_are_enough(open_page: Open, written: Path):
    page = open_page(written)
    page.press("Tab", 9)
    assert page("document.activeElement.className") == "skip"
    page.press("Enter", 13)
    for _ in range(40):
        page.press("Tab", 9)
        if page("document.activeElement.matches('.tree summary')"):
            break
    assert page("document.activeElement.matches('.tree summary')")
    assert page("getComputedStyle(document.activeElement).outlineStyle") != "none"
    before = page("document.activeElement.parentElement.open")
    page.press("Enter", 13)
    assert page("document.activeElement.parentElement.open") != before


def test_the_filter_keeps_what_has_every_word(open_page: Open, written: Path):
    page = open_page(written)
    entries = "[...document.querySelectorAll('.origins > details')]"
    shown = f"{entries}.filter(e => e.checkVisibility()).map(e => e.textContent)"
    everything = page(shown)
    set_it = "i.value = 'c_proj transposed'; i.dispatchEvent(new Event('input'))"
    page(f"(i => {{ {set_it} }})(document.querySelector('input'))")
    assert 0 < len(page(shown)) < len(everything)
    assert all("c_proj" in text and "transposed" in text for text in page(shown))


def test_it_is_whole_without_scripts(open_page: Open, written: Path):
    with_script, without = open_page(written), open_page(written, scripts=False)
    assert without("document.querySelector('.controls')") is None
    assert with_script("document.querySelectorAll('.controls').length") == 2
    assert without("looks.words()") == with_script("looks.words()")
    assert [name for name, *_ in without("looks.sections()")] == SECTIONS


@pytest.mark.parametrize("page_of", ["hostile", "hostile_graph"])
def test_hostile_names_do_nothing(page_of: str, open_page: Open, request: pytest.FixtureRequest):
    file: Path = request.getfixturevalue(page_of)
    page = open_page(file)
    page("looks.openAll()")
    assert page("typeof window.caught") == "undefined"
    assert page("document.scripts.length") == 1
    assert page("document.querySelectorAll('img, iframe, object, embed, [onerror], [onload]').length") == 0
    assert [event["request"]["url"] for event in page.seen("Network.requestWillBeSent")] == [file.as_uri()]
    assert complaints(page) == []
    assert all(name in page("document.body.innerText") for name in HOSTILE[:4])


def test_the_policy_holds_what_escaping_would_let_through(open_page: Open, written: Path, tmp_path: Path):
    """Were a name ever written unescaped, the browser would still refuse to run it, and to ask the network."""
    leak = '<script>window.caught=1</script><img src="http://127.0.0.1:9/x" onerror="window.caught=1">'
    leaky = tmp_path / "leaky.html"
    leaky.write_text(written.read_text("utf-8").replace("</main>", f"{leak}</main>"), "utf-8")
    page = open_page(leaky)
    assert page("typeof window.caught") == "undefined"
    assert len(complaints(page)) >= 2
    assert not page.seen("Network.responseReceivedExtraInfo")


def test_paper_shows_what_is_folded(open_page: Open, written: Path):
    page = open_page(written)
    folded = "document.querySelector('.origins dl').checkVisibility()"
    assert not page(folded)
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page(folded)
    assert page("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert len(page.pdf()) > 20_000
