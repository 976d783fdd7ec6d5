"""The test of a bundle's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike

from bringup.arguments import choice
from bringup.compile.bundle.manifest import program_of
from bringup.compile.gpu.emulated import EMULATED
from bringup.compile.gpu.kernel_plan import read_plan
from bringup.compile.gpu.sampling import check_calls
from bringup.compile.gpu.trial.trial import Row, Trial
from bringup.compile.program.program import Interface
from bringup.compile.runtime.opening import opened_files
from bringup.compile.targets.gpu import EMULATE, programs_of
from bringup.compile.targets.registry import of_bundle
from bringup.compile.targets.schedule import read_schedule
from bringup.diagnostics import fail


def trial_of(
    bundle: str | PathLike[str], say: Callable[[str], None] = lambda name: None, entries: Iterable[str] = ()
) -> list[Row]:
    """Every launch of a bundle with the findings on its kernels; `say` receives the name of each entry point.

    `entries` are the names of the entry points to test, if not all. Raises BU603 for an invalid bundle, BU018 for one
    without kernels that the emulator supports, BU024 for a name that is no entry point.
    """
    folder, manifest, weights = opened_files(bundle)
    target = of_bundle(manifest).target
    if EMULATE not in target.devices():
        help = f"it runs those for {', '.join(EMULATED)}"
        raise fail("BU018", f"the emulator does not run kernels for {target.name}", help=help)
    interface = Interface.from_json(manifest["interface"])
    known = [entry.name for entry in interface.entries]
    names = [choice("entry", name, known) for name in entries]
    with program_of(folder, manifest["files"]):
        schedule = read_schedule(folder, interface)
        plan = read_plan(folder, schedule.graphs)
        check_calls(plan, schedule, interface)
        trial = Trial(plan, programs_of(folder, plan), schedule, interface, weights)
    return trial.rows(manifest["vocab_size"], say, names)
