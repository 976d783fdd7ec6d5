"""A self-contained page: nothing is loaded from elsewhere, and a policy makes the browser enforce it."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from bringup import __version__
from bringup.compile.report.record import Record
from bringup.render.html.errors import errors
from bringup.render.html.findings import findings
from bringup.render.html.header import header
from bringup.render.html.memory import memory
from bringup.render.html.modules import modules
from bringup.render.html.parameters import parameters
from bringup.render.html.section import Section
from bringup.render.html.stages import stages
from bringup.render.html.tags import Html, tag


def page(record: Record) -> str:
    """The complete document. Equal records have equal pages; `time` elements have what differs from run to run."""
    rendered = (findings, stages, memory, errors, modules, parameters)
    sections = [section for make in rendered if (section := make(record))]
    head = tag("head", _meta(record), _inline("style", "style.css"))
    body = tag(
        "body", _skip(), header(record), _contents(sections), _main(sections), _footer(), _inline("script", "script.js")
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _meta(record: Record) -> list[Html]:
    own = f"style-src {_digest('style.css')}; script-src {_digest('script.js')}"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    return [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{record.job.model or record.job.graph.config.family}: bringup report"),
    ]


def _digest(name: str) -> str:
    """The SHA-256 of the only script, or of the only style, that the policy allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return files("bringup.render.html").joinpath(name).read_text("utf-8")


def _inline(name: str, asset: str) -> Html:
    return tag(name, Html(_asset(asset)))


def _skip() -> Html:
    return tag("a", "to the findings", href="#main", class_="skip")


def _contents(sections: list[Section]) -> Html:
    links = (tag("li", tag("a", section.title, href=f"#{section.name}")) for section in sections)
    return tag("nav", tag("ul", *links), aria_label="On this page")


def _main(sections: list[Section]) -> Html:
    return tag("main", *(section.html() for section in sections), id="main")


def _footer() -> Html:
    return tag("footer", tag("p", f"Written by bringup {__version__}. This page loads nothing and sends nothing."))
