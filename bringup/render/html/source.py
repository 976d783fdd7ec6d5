"""Lines of source code: their position, and their text."""

from __future__ import annotations

from textwrap import dedent

from bringup.render.html.tags import Html, code, tag
from bringup.render.spans import span_of
from bringup.spec import Site


def line_of(site: Site) -> Html:
    """A position in a file, and the expression there, if it can be read."""
    span = span_of(site)
    lines = [(line, Html("\n")) for line in dedent("\n".join(span.lines)).split("\n")] if span else []
    return tag("span", code(str(site), class_="site"), tag("pre", *lines) if lines else None, class_="source")
