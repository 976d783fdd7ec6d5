"""Writes docs/support.md: the GPU targets that have kernels for each family of the registry, by dtype.

    python benchmarks/support.py [FAMILY …]

Traces every tiny configuration of tests/models/test_FAMILY.py and selects the kernels of its schedule for each
architecture, with a prefill of 32 tokens, decode and batches of 4. It compiles no kernel and needs no GPU. Rows of
families that are not named are unchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia  # noqa: E402
from bringup.compile.pipeline import build  # noqa: E402
from bringup.diagnostics import BringupError  # noqa: E402
from bringup.graphs.registry import FAMILIES  # noqa: E402
from tests.models.family import Written, written  # noqa: E402

PAGE = ROOT / "docs/support.md"
DTYPES = ("float32", "bfloat16", "float16")
CONTEXT, PREFILL, BATCH = 128, 32, 4
NAMES = [("cuda:" if is_nvidia(name) else "rocm:") + name for name in ARCHITECTURES]
HEAD = f"""# Support by GPU targets

Written by `python benchmarks/support.py`. "all" means: at {", ".join(DTYPES)}, every operation of every
tiny configuration of the family's tests has a kernel for that architecture, in prefill of {PREFILL} tokens, in
decode, and in steps of up to {BATCH} sequences. Otherwise the code is the error of `compile`. `torch`, `cpu`
and `iree-cpu` are in [fidelity.md](fidelity.md), packed weights in [quantisation.md](quantisation.md), the
resources of kernels in [kernels.md](kernels.md).

| family | {" | ".join(f"`{name}`" for name in NAMES)} |
|---|{"---|" * len(NAMES)}
"""


def main(names: list[str]) -> None:
    rows = dict(re.findall(r"^\| (\w+) (\|.*\|)$", PAGE.read_text("utf-8"), re.MULTILINE)) if PAGE.exists() else {}
    rows.pop("family", None)
    for name in names or [family.name for family in FAMILIES]:
        print(name, flush=True)
        rows[name] = f"| {' | '.join(cells(name))} |"
        lines = "".join(f"| {family} {rows[family]}\n" for family in sorted(rows))
        PAGE.write_text(HEAD + lines, "utf-8")


def cells(name: str) -> list[str]:
    """What each target of NAMES supports of a family."""
    module = import_module(f"tests.models.test_{name}")
    refused: dict[str, dict[str, str]] = {target: {} for target in NAMES}
    with TemporaryDirectory() as folder:
        for dtype, case in product(DTYPES, module.CASES):
            model = written(module, case, Path(folder, f"{case}-{dtype}"), dtype)
            for target, code in codes(model, Path(folder, "schedule")):
                refused[target][dtype] = code
    return [_cell(refused[target]) for target in NAMES]


def codes(model: Written, out: Path) -> Iterator[tuple[str, str]]:
    """The targets that have no kernels for a model, and the code of the error."""
    for target in NAMES:
        try:
            build(
                model.job(), out=out, target=target, emit="schedule", max_seq_len=CONTEXT, buckets=(PREFILL,),
                max_batch_size=BATCH, force=True,
            )  # fmt: skip
        except BringupError as error:
            yield target, error.findings[0].code


def _cell(refused: dict[str, str]) -> str:
    if not refused:
        return "all"
    if len(refused) == len(DTYPES) and len(set(refused.values())) == 1:
        return next(iter(refused.values()))
    return ", ".join(f"{dtype}: {refused[dtype]}" if dtype in refused else dtype for dtype in DTYPES)


if __name__ == "__main__":
    main(sys.argv[1:])
