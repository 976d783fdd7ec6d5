# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""MLIR text -> vmfb bytes, by iree-compile."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Aggressive fusion puts GPT-2's embedding gather into LayerNorm and exceeds the stack limit of 32 KiB.
_COMMON = (
    "--iree-input-type=torch",
    "--iree-opt-level=O3",
    "--iree-dispatch-creation-enable-aggressive-fusion=false",
)
# Tiling at global optimisation packs each weight once, at load: twice the memory, and the most speed.
# GPT-2 small on 2 cores, ms for 512 tokens of prefill / one of decode: f32 packed 555 / 15, not 724 / 23.
_PACKED = (
    "--iree-opt-data-tiling=false",
    "--iree-global-opt-data-tiling=true",
    "--iree-dispatch-creation-data-tiling=false",
)
_PLAIN = (
    "--iree-opt-data-tiling=false",
    "--iree-global-opt-data-tiling=false",
    "--iree-dispatch-creation-data-tiling=false",
)


class LoweringError(RuntimeError):
    """iree-compile refused the module; the message is its first error line, `log` all it said."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True, slots=True, kw_only=True)
class IreeOptions:
    """`backend` and `device_flags` name the target; `pack_weights` trades memory for speed on CPUs.

    `dump_dir` keeps the text of each phase.
    """

    backend: str = "llvm-cpu"
    device_flags: tuple[str, ...] = ("--iree-llvmcpu-target-cpu=host",)
    pack_weights: bool = True
    extra_flags: tuple[str, ...] = ()
    dump_dir: Path | None = None

    def flags(self) -> list[str]:
        device = (
            ("--iree-hal-target-device=local", f"--iree-hal-local-target-device-backends={self.backend}")
            if self.backend == "llvm-cpu"
            else (f"--iree-hal-target-device={self.backend}",)
        )
        dump = (f"--dump-compilation-phases-to={self.dump_dir}",) if self.dump_dir else ()
        return [
            *device,
            *self.device_flags,
            *_COMMON,
            *(_PACKED if self.pack_weights else _PLAIN),
            *self.extra_flags,
            *dump,
        ]


def compile_mlir(text: str, options: IreeOptions | None = None) -> bytes:
    """The compiled module. Raises LoweringError with the compiler's first error."""
    from iree.compiler.tools.binaries import find_tool

    with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
        source, output = Path(folder, "model.mlir"), Path(folder, "model.vmfb")
        source.write_text(text)
        command = [
            find_tool("iree-compile"),
            str(source),
            "-o",
            str(output),
            *(options or IreeOptions()).flags(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LoweringError(_first_error(done.stderr, done.returncode), done.stderr)
        return output.read_bytes()


def _first_error(log: str, code: int) -> str:
    errors = (line.split("error: ", 1)[1] for line in log.splitlines() if "error: " in line)
    return next(errors, f"iree-compile ended with code {code} and no error line")
