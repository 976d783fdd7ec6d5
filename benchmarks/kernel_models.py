"""docs/kernels.md, "Whole models": what all kernels of a bundle take, of which none may spill.

Traces each model once and compiles its kernels for every architecture of NVIDIA's, without a GPU:
`python -m benchmarks.kernel_models`, with `--out FILE` to write the table alone, as for another version of Triton.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.kernel_bytes import CONFIG
from benchmarks.kernels import PAGE, configurations
from bringup.compile.cache.store import default_store
from bringup.compile.cuda.sampling import sampling_of
from bringup.compile.job import Job, open_job
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.resources import Resources, resources
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.kernels.select.split import split
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.trace_cached import EncodedProgram, encoded_program
from bringup.compile.targets.schedule import schedule_of
from bringup.compile.targets.selection import select

BEGIN, END = "<!-- begin of the generated table of models -->", "<!-- end of the generated table of models -->"
CONTEXT, PREFILL = 1024, 512
HEAD = """| on | model | dtype | kernels | most registers | bytes of stack | most shared memory | least occupancy |
|---|---|---|---|---|---|---|---|"""


def llama() -> Job:
    """Llama-3.2-1B's shape."""
    with TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(CONFIG), "utf-8")
        return open_job(checkpoint="dummy", config=str(config), dtype="bfloat16")


MODELS: Mapping[tuple[str, str], Callable[[], Job]] = {
    ("GPT-2 124M", "float32"): lambda: open_job("gpt2", "dummy"),
    ("Llama-3.2-1B", "bfloat16"): llama,
}

SHAPES = ("the shapes above", "both")


@cache
def program_of(model: tuple[str, str]) -> EncodedProgram:
    """Decode, and prefill of 512 tokens: the same for all architectures."""
    job = MODELS[model]()
    return encoded_program(
        job.graph, layout_of(job.graph, CONTEXT, (PREFILL,)), select("cuda:sm_90").form, default_store()
    )


def kernels_of(model: tuple[str, str], architecture: str) -> list[Kernel]:
    """All that a bundle has, each once, those that draw tokens among them; or those of `SHAPES`."""
    if model == SHAPES:
        return list(dict.fromkeys(kernel for _, _, kernel in configurations(architecture)))
    program, options = program_of(model), select(f"cuda:{architecture}").options
    schedule = schedule_of(program, options, None, lambda graph: split(graph, architecture))
    calls = [
        call
        for graph in schedule.graphs.values()
        for group in graph.groups
        for call in calls_of(graph, group, architecture) or ()
    ]
    calls += [call for found in sampling_of(schedule, program.interface).values() for call in found]
    return list(dict.fromkeys(call.kernel for call in calls))


def measured(model: tuple[str, str], architecture: str) -> list[tuple[Kernel, Resources]]:
    compiled = compile_kernels(kernels_of(model, architecture), architecture, default_store())
    return [(kernel, resources(each)) for kernel, each in compiled.items()]


def row(model: tuple[str, str], architecture: str) -> str:
    found = measured(model, architecture)
    most, used = max(found, key=lambda each: each[1].registers)
    shared, tight = max(found, key=lambda each: each[1].shared)
    least, few = min(found, key=lambda each: each[1].occupancy)
    stack = sum(each.stack for _, each in found)
    cells = [architecture, *model, str(len(found)), f"{used.registers} `{most.stem}`", str(stack)]
    cells += [f"{tight.shared:,} `{shared.stem}`", f"{few.warps} of {few.most} `{least.stem}`"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the table goes; default: docs/kernels.md")
    out = parser.parse_args().out
    lines: list[str] = []
    for name in filter(is_nvidia, ARCHITECTURES):
        for model in (SHAPES, *MODELS):
            lines.append(row(model, name))
            print(lines[-1], flush=True)
    table = "\n".join([f"Triton {version('triton')}.", "", HEAD, *lines, ""])
    if out:
        out.write_text(table, "utf-8")
        return
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
