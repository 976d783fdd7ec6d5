"""The formats of a report: one renderer each, imported on first use."""

from __future__ import annotations

from importlib import import_module

from bringup.diagnostics import Report
from bringup.render.terminal import Paint
from bringup.render.visible import harmless_report

FORMATS = ("full", "concise", "json", "github", "sarif", "junit", "markdown")


def render(name: str, report: Report, paint: Paint | None = None) -> str:
    """A report in one of FORMATS, with a newline at the end. Only the formats for people use `paint`."""
    return import_module(f"bringup.render.formats.{name}").render(harmless_report(report), paint or Paint())
