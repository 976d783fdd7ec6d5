"""Report formats: one renderer for each `--format`."""

from bringup.render.formats.by_name import FORMATS as FORMATS
from bringup.render.formats.by_name import render as render
