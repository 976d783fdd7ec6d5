"""`bringup lock`: writes a plan to a file, and checks that it has not changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack, cast

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.parameters.options import Named, job_options, open_named
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.words import NEW_FILE, OneOf
from bringup.diagnostics import BringupError, Diagnostic, fail

FILE = click.Path(dir_okay=False, path_type=Path)
LOCK = ".lock"
REQUEST = ("model", "checkpoint", "config", "adapter", "also", "allow_config", "revision", "dtype")


@click.command("lock", cls=SectionedCommand)
@job_options
@click.option("--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="Dtype of the parameters.")
@click.option("-o", "--out", type=NEW_FILE, metavar="FILE", help="Write the lock to FILE.")
@click.option("--check", "locked", type=FILE, metavar="FILE", help="Compare with the lock in FILE, and in FILES.")
@click.argument("files", nargs=-1, type=click.Path())
def command(out: Path | None, locked: Path | None, files: tuple[str, ...], **named: Unpack[Named]) -> None:
    """Write the sources of every parameter of MODEL to a file, or check that they have not changed.

    Commit the file to your repository. In CI, `bringup lock --check FILE` plans the model again, from headers only, and
    exits with 1 if a name, a shape, an axis or a rule has changed, in the adapter or in the checkpoint. Model and
    checkpoint are read from the file if they are omitted. Further arguments that end in .lock are FILES to check as
    well, as pre-commit passes them.
    """
    from bringup.compile.convert.lock import lock_of, write_lock

    if (out is None) == (locked is None):
        is_lock = (named["model"] or "").endswith(".lock")
        help = f"bringup lock --check {named['model']}" if is_lock else "bringup lock MODEL -o plan.lock"
        raise fail("BU023", "lock needs either -o FILE or --check FILE", help=help)
    if locked is not None:
        _check(locked, files, named)
    elif files:
        raise fail("BU023", f"`{files[0]}` is one word too many", help="bringup lock MODEL -o plan.lock")
    elif out is not None:
        job = open_named(named)
        if job.notice:
            print(f"note: {job.notice}", file=sys.stderr)
        lock = lock_of(job, {key: value for key in REQUEST if (value := cast("dict[str, Any]", named)[key])})
        write_lock(lock, out)
        print(f"wrote {out}: {len(lock['parameters'])} parameters, plan {lock['plan'][:16]}", file=sys.stderr)


def _check(locked: Path, files: Sequence[str], named: Named) -> None:
    """Compares every lock with its plan. Raises BU141 with the changes of all, BU044 for an invalid lock file."""
    words = [word for word in (named["model"], *files) if word]
    locks = [locked, *(Path(word) for word in words if word.endswith(LOCK))]
    models = [word for word in words if not word.endswith(LOCK)]
    if len(models) > 1:
        help = "name one MODEL; further lock files end in .lock"
        raise fail("BU023", f"`{models[1]}` is neither a lock file nor the model", help=help)
    given: Any = {**named, "model": models[0] if models else None}
    findings = [finding for file in locks for finding in _changes(file, given)]
    if findings:
        raise BringupError(*findings)


def _changes(file: Path, given: Any) -> Sequence[Diagnostic]:
    """The differences between a lock and its plan; prints a message for a lock without any."""
    from bringup.compile.convert.lock import check_lock, lock_of, read_lock

    old = read_lock(file)
    if not (given["model"] or given["checkpoint"]):
        given = {**given, **{key: old["request"][key] for key in REQUEST if key in old.get("request", {})}}
    new = lock_of(open_named(given), {})
    if findings := check_lock(old, new, str(file)):
        return findings
    print(f"{file}: unchanged, {len(new['parameters'])} parameters, plan {new['plan'][:16]}", file=sys.stderr)
    return []
