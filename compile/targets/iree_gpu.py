"""The targets `iree-cuda:…` and `iree-rocm:…`: the program of `iree-cpu`, compiled by IREE for a GPU. None is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bringup.compile.targets.iree_cpu import IREE_CPU, IreeCpu
from bringup.compile.targets.target import Estimate, Options
from bringup.diagnostics import BringupError, fail

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.program.program import Executor, Interface
    from bringup.compile.targets.iree_compiler import IreeOptions
    from bringup.spec import TensorInfo

# By family: IREE's device, its flag for the architecture, and the architectures. IREE 3.13 rejects sm_90.
FAMILIES = {
    "iree-cuda": ("cuda", "--iree-cuda-target", ("sm_80", "sm_89")),
    "iree-rocm": ("hip", "--iree-rocm-target", ("gfx942",)),
}


class IreeGpu(IreeCpu):
    """A family's target for one architecture. A bundle has one IREE module, which bringup does not run."""

    options = MappingProxyType({})
    stages_of = IREE_CPU
    supports_loras = False  # no executor runs its module, so none fills slots

    def __init__(self, family: str, architecture: str) -> None:
        self.name = f"{family}:{architecture}"
        self._device, self._flag, _ = FAMILIES[family]
        self._architecture = architecture
        maker = "NVIDIA" if family == "iree-cuda" else "AMD"
        self.summary = f"torch-mlir and IREE, for {maker} GPUs; `bringup run` rejects these bundles"

    def settings(self, options: Options, dump_dir: Path | None) -> IreeOptions:
        from bringup.compile.targets.iree_compiler import IreeOptions

        return IreeOptions(
            backend=self._device,
            device_flags=(f"{self._flag}={self._architecture}",),
            pack_weights=False,
            dump_dir=dump_dir / "iree" if dump_dir else None,
        )

    def load(
        self, folder: Path, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
    ) -> Executor:
        """Raises BU619: bringup does not run these bundles."""
        raise self._compile_only()

    def devices(self) -> Sequence[str]:
        return ()

    def check_device(self, name: str) -> None:
        """Raises BU619."""
        raise self._compile_only()

    def cache_key(self, options: Options) -> Mapping[str, str]:
        return {"flags": " ".join(self.settings(options, None).flags())}

    def estimate(self, weights: Sequence[TensorInfo], options: Options) -> Estimate:
        """The estimate of `iree-cpu` without packed weights: the compiler is the same."""
        return super().estimate((), {"pack-weights": "no"})

    def _compile_only(self) -> BringupError:
        why = "no result of IREE on a GPU has been compared with torch"
        return fail(
            "BU619",
            f"`{self.name}` is for compiling only: {why}",
            help="`--target cuda:…` compiles bundles that run, `--target iree-cpu` runs IREE on this processor; "
            "iree-run-module runs `module.vmfb`",
        )


IREE_GPU = tuple(IreeGpu(family, architecture) for family, (_, _, known) in FAMILIES.items() for architecture in known)
