"""The target `iree-cpu`: torch-mlir lowers the program to MLIR text, IREE compiles it for a CPU and runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.processor import processor
from bringup.compile.cache.text_digests import digest
from bringup.compile.targets.iree_ops import IMPLEMENTATIONS
from bringup.compile.targets.target import TRACING, Estimate, Option, Options, Target
from bringup.diagnostics import fail
from bringup.spec import DTYPES, FLOATS, TensorInfo
from bringup.system.atomic import write_file
from bringup.system.os_errors import refused

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram

    from bringup.compile.program.program import Executor, Function, Interface
    from bringup.compile.program.trace_cached import EncodedProgram
    from bringup.compile.targets.iree_compiler import IreeOptions
    from bringup.compile.targets.module_store import ModuleStore

MODULE = "module.vmfb"
DEFAULT_DEVICE = "local-task"


def _processors() -> Sequence[str]:
    from bringup.compile.targets.iree_processors import accepted_cpus

    return ("host", "generic", *accepted) if (accepted := accepted_cpus()) else ()


class IreeCpu(Target):
    """A bundle has one IREE module."""

    name = "iree-cpu"
    summary = "torch-mlir and IREE, for the processor of this machine"
    requires = ("torch", "torch-mlir", "iree-base-compiler", "iree-base-runtime")
    runs_with = ("iree-base-runtime",)
    supports_packed = True
    supports_loras = True
    options = {  # noqa: RUF012  a Mapping of the protocol
        "cpu": Option(
            default="host",
            choices=_processors,
            help="the processor to compile for: host, generic, or one that LLVM names",
        ),
        "pack-weights": Option(
            default="yes",
            choices=("yes", "no"),
            help="copy matrices into tiles at load: more speed, and their memory twice",
        ),
    }
    phases = ("mlir", "vmfb")
    # IREE 3.13 writes 0 for float8_e4m3fn values below the normal range, which should be rounded to subnormal ones (or
    # to the smallest normal one): small keys and values would be lost.
    cache_dtypes = ("float32", "bfloat16", "float16")
    implementations = IMPLEMENTATIONS

    def settings(self, options: Options, dump_dir: Path | None) -> IreeOptions:
        """The options of iree-compile."""
        from bringup.compile.targets.iree_compiler import IreeOptions

        return IreeOptions(
            device_flags=(f"--iree-llvmcpu-target-cpu={options['cpu']}",),
            pack_weights=options["pack-weights"] == "yes",
            dump_dir=dump_dir / "iree" if dump_dir else None,
        )

    def encode(self, function: Function, exported: ExportedProgram) -> bytes:
        from bringup.compile.targets.iree_mlir import encode

        return encode(function, exported)

    def prepare(self) -> None:
        from bringup.compile.targets.iree_mlir import prepare

        prepare()

    @contextmanager
    def lower(
        self, program: EncodedProgram, folder: Path, options: Options, store: ModuleStore, dump_dir: Path | None
    ) -> Generator[Callable[[], str]]:
        """A dump has the text as `2-model.mlir`, and that of IREE's phases in `iree/`; it bypasses the cache."""
        from bringup.compile.targets.iree_compiler import Compilation

        text = _text(program, dump_dir)
        inputs = {"mlir": digest(text)}
        cached = None if dump_dir else store.get(inputs)
        if cached is not None:
            write_file(folder / MODULE, cached)
            yield lambda: f"{_size(cached)}, from the cache"
            return
        start = time.perf_counter()
        with Compilation(text, self.settings(options, dump_dir), folder) as compilation:

            def finish() -> str:
                module = _compiled(compilation.result)
                if not dump_dir:  # with it, flags differ from those of the key
                    store.put(inputs, module, what=MODULE, seconds=time.perf_counter() - start)
                write_file(folder / MODULE, module)
                return _size(module)

            yield finish

    def load(
        self, folder: Path, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
    ) -> Executor:
        from bringup.compile.targets.iree_executor import IreeExecutor

        return IreeExecutor((folder / MODULE).read_bytes(), interface, weights, device=device or DEFAULT_DEVICE)

    def cache_key(self, options: Options) -> Mapping[str, str]:
        """The processor is an input if the module is compiled for the host's."""
        flags = " ".join(self.settings(options, None).flags())
        return {"flags": flags, **({"processor": processor()} if options["cpu"] == "host" else {})}

    def estimate(self, weights: Sequence[TensorInfo], options: Options) -> Estimate:
        """Measured as `target.TRACING`, with IREE 3.13: 605 MB and 1,645 MB. iree-compile needs less than tracing.

        IREE packs float matrices when it loads them.
        """
        matrices = (
            DTYPES[info.dtype].nbytes(info.shape) for info in weights if len(info.shape) == 2 and info.dtype in FLOATS
        )
        packed = sum(matrices) if options["pack-weights"] == "yes" else 0
        return Estimate(tools=725_000_000, children=TRACING.children, space=1_975_000_000, packed=packed)

    def emit(self, phase: str, program: EncodedProgram, options: Options, dump_dir: Path | None) -> bytes:
        from bringup.compile.targets.iree_compiler import compile_mlir

        text = _text(program, dump_dir)
        settings = self.settings(options, dump_dir)
        return text.encode() if phase == "mlir" else _compiled(lambda: compile_mlir(text, settings))

    def devices(self) -> Sequence[str]:
        """IREE's drivers for CPUs; a URI such as `local-task://0` names one device of a driver."""
        from iree import runtime  # pyright: ignore[reportMissingTypeStubs]

        return [name for name in runtime.query_available_drivers() if name.startswith("local-")]

    def check_device(self, name: str) -> None:
        from iree import runtime  # pyright: ignore[reportMissingTypeStubs]

        try:
            runtime.get_device(name)
        except (ValueError, RuntimeError) as error:  # not a driver's name; a driver without its library
            known = ", ".join(self.devices())
            raise fail("BU018", f"unknown executor `{name}`: {error}", help=f"for a CPU, IREE has {known}") from error


IREE_CPU = IreeCpu()


def _text(program: EncodedProgram, dump_dir: Path | None) -> str:
    """The whole program in MLIR."""
    from bringup.compile.targets.iree_mlir import decode, module_text

    text = module_text(program.interface, {name: decode(code) for name, code in program.code.items()})
    if dump_dir:
        write_file(dump_dir / "2-model.mlir", text.encode())
    return text


def _compiled(work: Callable[[], bytes]) -> bytes:
    """The result of `work`. Raises BU401 if the compiler rejects the program, BU90x for errors of the system."""
    from bringup.compile.targets.iree_compiler import LoweringError

    try:
        return work()
    except LoweringError as error:
        raise refused(error) or fail(
            "BU401",
            f"IREE could not lower the program: {error}",
            help="keep the phases with --dump-dir DIR; `--target torch` runs the same program without IREE",
        ) from error


def _size(module: bytes) -> str:
    return f"{MODULE}, {len(module) / 1e3:,.0f} kB"
