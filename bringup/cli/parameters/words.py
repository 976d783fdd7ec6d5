"""Types of words on the command line: their valid values, and their completions."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from bringup.arguments import choice
from bringup.cli.parameters.usage import named
from bringup.render.write import check_report
from bringup.system.destination import check_new_file, check_new_folder

SCHEMES = ("hf://", "pypi:", "dummy")


class OneOf(click.Choice[str]):
    """One of a few words. Another is BU024 with a suggestion."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return choice(named(param) if param else "this option", value, [str(word) for word in self.choices])


class Number(click.FloatRange):
    """A number in a range; NaN is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}", param, ctx)
        return number


class Word(click.ParamType[str]):
    """A word that a shell completes from a list; with `files`, from the names of files and folders as well."""

    name = "text"

    def __init__(self, listed: Callable[[], Iterable[str]], *, files: str = "") -> None:
        self.listed = listed
        self.files = files

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        kinds = [CompletionItem(incomplete, type=self.files)] if self.files else []
        return kinds + [CompletionItem(word) for word in self.listed() if word.startswith(incomplete)]


class Bundle(click.Path):
    """A folder of `compile`; the completions are the bundles among the folders here, or else every folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        manifests = Path().glob(f"{incomplete}*/manifest.json") if not Path(incomplete).is_absolute() else ()
        found = [CompletionItem(str(manifest.parent)) for manifest in sorted(manifests)]
        return found or [CompletionItem(incomplete, type="dir")]


class NewPath(click.Path):
    """A path that the command writes to when its work is done. `check` raises an error before the work if it cannot."""

    def __init__(self, check: Callable[[Path, str], None]) -> None:
        super().__init__(path_type=Path)
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        self.check(path, named(param) if param and "-o" not in param.opts else "-o")
        return path


def _models() -> Iterable[str]:
    from bringup.graphs.registry import PRESETS, families

    return dict.fromkeys([*PRESETS, *(family.name for family in families())])


def _codes() -> Iterable[str]:
    from bringup.codes import titles
    from bringup.guides import names

    return [*(word for pair in titles().items() for word in pair), *names()]


MODEL = Word(_models, files="file")
CODE = Word(_codes)
CHECKPOINT = Word(lambda: SCHEMES, files="file")
BUNDLE = Bundle()
NEW_FILE = NewPath(check_new_file)
NEW_FOLDER = NewPath(check_new_folder)
REPORT = NewPath(lambda file, option: check_report(file))
