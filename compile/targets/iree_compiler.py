# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""MLIR text -> vmfb bytes, by iree-compile."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bringup.compile.targets.iree_processors import HOST, host_flags
from bringup.system.die_with_parent import die_with
from bringup.system.environment import minimal

# Aggressive fusion puts GPT-2's embedding gather into LayerNorm and exceeds the stack limit of 32 KiB.
_COMMON = (
    "--iree-input-type=torch",
    "--iree-opt-level=O3",
    "--iree-dispatch-creation-enable-aggressive-fusion=false",
)
# Steps that take a tenth of the compile without a benefit: constants evaluated now instead of at load (weights are not
# constants here), and the source lines in the MLIR of an error of the running module.
_QUICK = (
    "--iree-opt-const-eval=false",
    "--iree-llvmcpu-debug-symbols=false",
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-vm-bytecode-module-strip-debug-ops=true",
)
# Executables remain linked into one library, and are not cached one by one. A cache by content needs a library for
# each, --iree-hal-link-executables=false: GPT-2 small has 70, and iree-compile takes 29 s of processor time instead of
# 12. At most 9 s of 14 could be saved after an edit of a layer: the phases up to executables take 5, with layers
# inlined. Tiling at global optimisation packs each weight once, at load: twice the memory, and the highest speed. GPT-2
# small on 2 cores, ms for 512 tokens of prefill / one of decode: float32 packed 555 / 15, unpacked 724 / 23.
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
    """An error of iree-compile for the module; the message is its first error line, `log` its complete output."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True, slots=True, kw_only=True)
class IreeOptions:
    """`backend` and `device_flags` select the device; `pack_weights` uses more memory for speed on CPUs.

    `dump_dir` receives the text of each phase.
    """

    backend: str = "llvm-cpu"
    device_flags: tuple[str, ...] = (HOST,)
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
            *(() if self.dump_dir else _QUICK),
            *self.extra_flags,
            *dump,
        ]


class Compilation:
    """A running iree-compile, in a folder of the caller's. Leaving the `with` block ends it."""

    def __init__(self, text: str, options: IreeOptions, folder: Path) -> None:
        self.options = options
        self.source, self.output, self.log = (folder / name for name in ("model.mlir", "model.vmfb", "iree.log"))
        self.source.write_text(text)
        self.process = self._start("--verify=false")

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *failed: object) -> None:
        self.process.kill()
        self._end()

    def _end(self) -> None:
        self.process.wait()
        for path in (self.source, self.output, self.log):
            path.unlink(missing_ok=True)

    def result(self) -> bytes:
        """The compiled module; temporary files are removed. Raises LoweringError with the compiler's first error.

        Only after a failure, the IR is verified between the passes, which takes a quarter of the time, to find the
        cause.
        """
        if self.process.wait() > 0:
            self.process = self._start("--verify=true")
        if code := self.process.wait():
            log = self.log.read_text("utf-8", "replace")
            raise LoweringError(_first_error(log, code), log)
        module = self.output.read_bytes()
        self._end()
        return module

    def _start(self, verify: str) -> subprocess.Popen[bytes]:
        from iree.compiler.tools.binaries import find_tool

        flags = [each for flag in self.options.flags() for each in (host_flags() if flag == HOST else (flag,))]
        command = [find_tool("iree-compile"), str(self.source), "-o", str(self.output), *flags, verify]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=minimal(TMPDIR=str(self.source.parent)),  # its own temporary files are removed with the folder
                preexec_fn=partial(die_with, os.getpid()),
            )


def compile_mlir(text: str, options: IreeOptions | None = None) -> bytes:
    """The compiled module. Raises LoweringError with the compiler's first error."""
    with (
        tempfile.TemporaryDirectory(prefix="bringup-") as folder,
        Compilation(text, options or IreeOptions(), Path(folder)) as compilation,
    ):
        return compilation.result()


def _first_error(log: str, code: int) -> str:
    if code < 0:
        ended = f"iree-compile was ended by {signal.Signals(-code).name}"
        return next((f"{ended}: {line}" for line in log.splitlines() if line.startswith("LLVM ERROR: ")), ended)
    errors = (line.split("error: ", 1)[1] for line in log.splitlines() if "error: " in line)
    return next(errors, f"iree-compile ended with code {code} and no error line")
