"""The resources of the kernels of a bundle, read from their binaries: `python -m benchmarks.kernel_resources BUNDLE`.

There is a row for each kind of kernel. `bytes of stack` is the sum over its kernels; it includes spilled registers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from bringup.compile.gpu.kernel_plan import FILE, plan_from_json
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.resources import Resources, resources
from bringup.compile.targets.gpu import binary_of

HEAD = """| kernel | different ones | most registers | bytes of stack | most shared memory | least occupancy |
|---|---|---|---|---|---|"""


def measured(bundle: Path) -> Iterator[tuple[str, Resources]]:
    """The stem of each kernel of `kernels.json`, and its resources."""
    plan = plan_from_json(json.loads((bundle / FILE).read_text("utf-8")))
    for planned in plan.kernels.values():
        compiled = Compiled(
            name=planned.name,
            capability=plan.capability,
            binary=binary_of(bundle, plan.capability, planned),
            assembly="",
            ttgir="",
            types=planned.types,
            num_warps=planned.num_warps,
            warp_size=planned.warp_size,
            shared=planned.shared,
        )
        yield planned.kernel.stem, resources(compiled)


def table(bundle: Path) -> str:
    found: dict[str, list[Resources]] = {}
    for stem, used in measured(bundle):
        found.setdefault(stem, []).append(used)
    lines = [HEAD]
    for stem, each in sorted(found.items()):
        least = min(each, key=lambda used: used.occupancy)
        most = f"{max(used.registers for used in each)} | {sum(used.stack for used in each)}"
        shared = max(used.shared for used in each)
        lines.append(f"| `{stem}` | {len(each)} | {most} | {shared:,} | {least.warps} of {least.max_warps} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    print(table(parser.parse_args().bundle))


if __name__ == "__main__":
    main()
