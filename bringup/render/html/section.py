"""A part of the page."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.render.html.tags import Html, Inside, tag


@dataclass(frozen=True, slots=True)
class Section:
    """`name` is its anchor in the page; `lead` is a sentence that describes it."""

    name: str
    title: str
    lead: Inside
    inside: tuple[Inside, ...]

    def html(self) -> Html:
        heading = tag("h2", self.title, id=f"{self.name}-heading")
        lead = tag("p", self.lead, class_="lead")
        return tag("section", heading, lead, *self.inside, id=self.name, aria_labelledby=f"{self.name}-heading")
