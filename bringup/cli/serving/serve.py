"""`bringup serve`: OpenAI's API over HTTP, from a bundle."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bringup.cli.bundles import note_dummy
from bringup.cli.parameters.drafts import check_draft, draft_options, loaded
from bringup.cli.parameters.loras import serve_lora_option
from bringup.cli.parameters.targets import DEVICE
from bringup.cli.parameters.words import BUNDLE, Number

if TYPE_CHECKING:
    from bringup.compile.runtime.batch import Batch
    from bringup.compile.serve.models import Models

MIB = 1 << 20
VARIABLE = "BRINGUP_API_KEY"


@click.command("serve")
@click.argument("bundle", type=BUNDLE)
@serve_lora_option
@click.option(
    "--lora-fraction",
    type=Number(0, 1, min_open=True),
    metavar="F",
    help="Use at most this part of the memory that is free once the bundle is loaded for slots of LoRAs; default: all "
    "slots of the bundle.",
)
@draft_options(default="4")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="H", help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    metavar="P",
    help="The port to listen on; 0: any free one.",
)
@click.option(
    "--api-key",
    metavar="KEY",
    help=f"The bearer token of requests. Safer in {VARIABLE}: other users of the machine can read options.",
)
@click.option("--model-name", metavar="NAME", help="The name of the model in requests; default: the bundle's name.")
@click.option(
    "--max-queue",
    type=click.IntRange(0),
    default=64,
    show_default=True,
    metavar="N",
    help="Sequences that may wait; further ones are rejected with 429.",
)
@click.option(
    "--max-body-bytes",
    type=click.IntRange(1),
    default=MIB,
    show_default=True,
    metavar="N",
    help="Largest body of a request.",
)
@click.option(
    "--step-seconds",
    type=Number(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="N",
    help="If a step of the program takes longer, the server ends.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="An additional host name in requests, such as that of a proxy (repeatable).",
)
@click.option("--executor", type=DEVICE, metavar="NAME", help="A device of the bundle's target (`bringup targets`).")
def command(
    bundle: Path, lora: dict[str, str], lora_fraction: float | None, draft: Path | None, draft_tokens: int | None,
    host: str, port: int, api_key: str | None, model_name: str | None, max_queue: int, max_body_bytes: int,
    step_seconds: float, allow_host: tuple[str, ...], executor: str | None,
) -> None:  # fmt: skip
    """Serve BUNDLE over HTTP: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics.

    A request's `model` is the name of the model or of a LoRA. After SIGTERM the server answers all accepted requests,
    and then ends.
    """
    from bringup.compile.serve.hosts import is_loopback
    from bringup.compile.serve.limits import Limits
    from bringup.compile.serve.server import open_served, serve
    from bringup.render.progress import StageLines

    check_draft(draft, draft_tokens)
    lines = StageLines()
    api_key = os.environ.get(VARIABLE) if api_key is None else api_key  # click treats an empty variable as unset

    def opening() -> Batch:
        with lines.stage(f"Loading {loaded(bundle, draft)}"):
            batch = open_served(bundle, executor, lora, lora_fraction, draft, draft_tokens)
        note_dummy(batch.manifest)
        if batch.drafts:
            note_dummy(batch.drafts.manifest)
        if reason := batch.unshared:
            print(f"note: no prompts share a prefix, because the model has {reason}", file=sys.stderr)
        return batch

    def ready(url: str, models: Models) -> None:
        names = ", ".join((models.base, *models.loras))
        print(f"serving {names} at {url}/v1", file=sys.stderr, flush=True)

    if api_key is None and not is_loopback(host):
        print("note: anybody who reaches this address can use the server; --api-key restricts that", file=sys.stderr)
    with _log():
        serve(
            opening,
            model=model_name or Path(os.path.realpath(bundle)).name.removesuffix(".bundle"),
            loras=lora,
            host=host,
            port=port,
            api_key=api_key,
            limits=Limits(queue=max_queue, body=max_body_bytes, step=step_seconds),
            ready=ready,
            allowed_hosts=allow_host,
        )


@contextmanager
def _log() -> Generator[None]:
    """Logs to the current stderr, which changes for moments (`compile/text/panics.py`)."""
    with open(os.dup(2), "w", encoding="utf-8", errors="replace") as stderr:  # noqa: PTH123  a descriptor
        handler = logging.StreamHandler(stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
