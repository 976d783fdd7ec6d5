"""Options for a draft model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bringup.cli.parameters.sections import Command, with_options
from bringup.cli.parameters.words import BUNDLE

if TYPE_CHECKING:
    from bringup.compile.runtime.stats import DraftStats
    from bringup.render.progress import StageLines


DRAFT = click.option(
    "--draft",
    type=BUNDLE,
    metavar="BUNDLE",
    help="A draft model, which proposes tokens that the model checks in one step: the same text, in fewer steps.",
)


def draft_options(default: str) -> Callable[[Command], Command]:
    """`--draft`, and how many tokens it proposes, by default `default`."""

    def add(command: Command) -> Command:
        return with_options(command, (DRAFT, option))

    option = click.option(
        "--draft-tokens",
        type=click.IntRange(1),
        metavar="K",
        help=f"With --draft: the most tokens that it proposes in a step; default: {default}.",
    )
    return add


def check_draft(draft: Path | None, draft_tokens: int | None) -> None:
    """Raises click.UsageError for a number of proposals without a draft."""
    if draft is None and draft_tokens is not None:
        raise click.UsageError("--draft-tokens needs --draft BUNDLE")


def loaded(bundle: Path, draft: Path | None) -> str:
    """The bundles that are loaded, for a line of progress."""
    return f"{bundle} and {draft}" if draft else f"{bundle}"


def say_accepted(lines: StageLines, stats: DraftStats) -> None:
    """A line with the number of accepted tokens, their share, and the tokens a step."""
    rates = f"{stats.accepted} of {stats.proposed} tokens ({stats.acceptance_rate:.1%}) in {stats.steps} steps"
    lines.say("Accepted", f"{rates} of the model, {stats.tokens_per_step:.2f} tokens a step")
