"""Writes docs/support.md: the GPU targets that have kernels for each family of the registry, by dtype.

    python -m benchmarks.support [FAMILY …]

Every tiny configuration of tests/models/test_FAMILY.py is traced once in each dtype. Kernels for each architecture are
then selected for the launches of its schedule. No kernel is compiled, and no GPU is needed. Rows of families that are
not named are unchanged.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from bringup.compile.cache.store import default_store
from bringup.compile.job import Job
from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia
from bringup.compile.kernels.select.registry import split
from bringup.compile.packed_job import weights_of
from bringup.compile.pipeline import check
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.trace_cached import encoded_program
from bringup.compile.schedule.schedule import Schedule
from bringup.compile.targets.schedule import schedule_of
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError
from bringup.graphs.registry import FAMILIES
from tests.models.family import written

PAGE = Path(__file__).resolve().parent.parent / "docs/support.md"
DTYPES = ("float32", "bfloat16", "float16")
CONTEXT, PREFILL, BATCH = 128, 32, 4
TARGETS = {name: ("cuda:" if is_nvidia(name) else "rocm:") + name for name in ARCHITECTURES}
Codes = Mapping[tuple[str, str], Sequence[str]]  # by configuration and code: the dtypes at which it is an error
ROW = re.compile(r"^\| (\w+) \| (\d+) \| (.*) \|$", re.MULTILINE)
HEAD = f"""# Support by GPU targets

Written by `python -m benchmarks.support`. "all" means that at {", ".join(DTYPES)}, every operation of every tiny
configuration of the family's tests has a kernel for that architecture: in prefill of {PREFILL} tokens, of one sequence
and of {BATCH}, and in decode of 1, 2 and {BATCH} sequences. Otherwise a cell lists the configurations without kernels,
with the code of the error of `compile`, and with the dtypes if it is an error at some only. Kernels are selected for
this page, and not compiled; [targets.md](targets.md) states what the tests run and what was measured on a card. `cpu`,
the default target, supports every family at these dtypes; its errors and those of `torch` and `iree-cpu` are in
[fidelity.md](fidelity.md). Packed weights are in [quantisation.md](quantisation.md), registers and memory of the
kernels in [kernels.md](kernels.md).

| family | configurations | {" | ".join(f"`{target}`" for target in TARGETS.values())} |
|---|--:|{"---|" * len(TARGETS)}
"""


def main(names: list[str]) -> None:
    rows = {name: f"{count} | {cells}" for name, count, cells in ROW.findall(_page())}
    for name in names or [family.name for family in FAMILIES]:
        print(name, flush=True)
        rows[name] = row(name)
        known = sorted({family.name for family in FAMILIES} & rows.keys())
        PAGE.write_text(HEAD + "".join(f"| {each} | {rows[each]} |\n" for each in known), "utf-8")


def _page() -> str:
    return PAGE.read_text("utf-8") if PAGE.exists() else ""


def row(name: str) -> str:
    """The number of a family's configurations, and the cell of each architecture."""
    module = import_module(f"tests.models.test_{name}")
    codes: dict[str, dict[tuple[str, str], list[str]]] = {architecture: {} for architecture in ARCHITECTURES}
    with TemporaryDirectory() as folder:
        for case, dtype in product(module.CASES, DTYPES):
            job = written(module, case, Path(folder, f"{case}-{dtype}"), dtype).job()
            for architecture, error in errors_of(job).items():
                codes[architecture].setdefault((case, error.findings[0].code), []).append(dtype)
    return " | ".join([str(len(module.CASES)), *map(cell, codes.values())])


def errors_of(job: Job) -> dict[str, BringupError]:
    """The architectures that a model cannot be compiled for, with the error that a compile for each raises."""
    try:
        found = schedule(job)
    except BringupError as error:
        return dict.fromkeys(ARCHITECTURES, error)
    return dict(_errors(found))


def _errors(found: Schedule) -> Iterator[tuple[str, BringupError]]:
    for architecture in ARCHITECTURES:
        try:
            for graph in found.graphs.values():
                split(graph, architecture)
        except BringupError as error:
            yield architecture, error


def schedule(job: Job) -> Schedule:
    """The launches of a model before groups are split for an architecture: the same for all GPU targets."""
    selection = select(next(iter(TARGETS.values())))
    check(job).raise_if_errors()
    job, _ = weights_of(job, "auto", selection)
    layout = layout_of(job.graph, CONTEXT, (PREFILL,), max_batch_size=BATCH)
    program = encoded_program(job.graph, layout, selection.form, default_store())
    return schedule_of(program, selection.options, None)


def cell(codes: Codes) -> str:
    """The text for one architecture: its configurations without kernels."""
    parts = [f"`{case}`{_at(dtypes)}: {code}" for (case, code), dtypes in codes.items()]
    return ", ".join(parts) or "all"


def _at(dtypes: Sequence[str]) -> str:
    return "" if len(dtypes) == len(DTYPES) else f" at {' and '.join(dtypes)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    main(parser.parse_args().families)
