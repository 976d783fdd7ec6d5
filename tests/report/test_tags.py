"""Text stays text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from bringup.render.html.tags import Html, tag, text
from bringup.render.visible import visible


class Seen(HTMLParser):
    """Elements with their attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@given(st.text(st.characters()), st.text(st.characters(), min_size=1))
def test_no_text_becomes_markup(inside: str, value: str):
    seen = Seen(tag("p", inside, title=value))
    assert seen.elements == [("p", {"title": visible(value)})]
    assert "".join(seen.texts) == visible(inside)


def test_markup_stays_markup_and_much_is_joined():
    inner = tag("b", "x")
    assert tag("p", inner, [" & ", None, 3, (inner,)], class_="a", aria_label="b", data_n=0.5, hidden="", id=None) == (
        '<p class="a" aria-label="b" data-n="0.5" hidden><b>x</b> &amp; 3<b>x</b></p>'
    )
    assert tag("br") == "<br>"


def test_joining_html_by_hand_escapes_it():
    assert text(Html("<b>") + "x") == "&lt;b&gt;x"
