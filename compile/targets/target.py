"""The protocol of a target, which compiles a program and runs the result. docs/targets.md shows how to write one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.options import CACHE_DTYPES

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram

    from bringup.adapters.planning.adapter import Adapter
    from bringup.compile.program.program import Executor, Function, Interface
    from bringup.compile.program.trace_cached import EncodedProgram
    from bringup.compile.targets.module_store import ModuleStore
    from bringup.graphs.core.graph import Graph
    from bringup.spec import TensorInfo

Options = Mapping[str, str]  # every option of a target with its value, as `--target-option` writes it
Known = Sequence[str] | Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting of a target: `--target-option NAME=VALUE`. `default` is a valid value, `help` one line.

    `choices` are all valid values, or a function that returns them. The function is called only to check a value, and
    returns nothing if it cannot determine them. Without choices a value is any text, or an integer if `kind` is
    "integer".
    """

    default: str
    help: str
    choices: Known = ()
    kind: Literal["text", "integer"] = "text"

    def known(self) -> Sequence[str]:
        """All valid values; empty if any value of the kind is valid."""
        return self.choices() if callable(self.choices) else self.choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes that a target needs while it compiles, without weights, and while its result runs.

    `tools`: resident memory of bringup's own process. `children`: of the largest process that runs in parallel with it.
    `space`: address space of a process. `packed`: copies of weights in the target's own layout, created at load.
    """

    tools: int
    children: int
    space: int
    packed: int = 0


# Python and torch, which traces for every target: resident memory (VmHWM) and address space (VmPeak) of a whole compile
# whose weights take none, GPT-2 with two layers of 16 channels. Measured on x86-64 Linux, torch 2.13 with Triton, which
# it imports where it is installed: 460 MB, 396 MB in the forks that trace, 1,134 MB. A fifth is added for others.
TRACING = Estimate(tools=550_000_000, children=475_000_000, space=1_360_000_000)


@runtime_checkable
class Target(Protocol):
    """A compiler, and the runtime of its results. A package provides one with the entry point group `bringup.targets`.

    Subclasses define `name`, `summary`, `encode`, `lower` and `load`; everything else has a default. All compiles of a
    process share one object, so it holds no state of a compile.
    """

    name: str
    """What `--target` and a bundle's manifest have: lower case letters, digits, `-`, `_` and `.`.

    A target of a family has the family's name before a colon: `cuda:sm_90`. Its members are listed together.
    """
    summary: str
    """One line for `bringup targets`."""
    requires: tuple[str, ...] = ()
    """Distributions that must be installed, by their names on PyPI."""
    runs_with: tuple[str, ...] = ()
    """Those of `requires` that are needed to run a bundle."""
    options: Mapping[str, Option] = MappingProxyType({})
    """The options of `--target-option NAME=VALUE`."""
    phases: tuple[str, ...] = ()
    """The values of `--emit` in addition to `graph`, `plan`, `program` and `bundle`; see `emit`."""
    opaque: frozenset[str] = frozenset()
    """Names of operations (bringup.graphs.ops) that remain opaque operators in the traced program."""
    cache_dtypes: tuple[str, ...] = CACHE_DTYPES
    """The dtypes of attention caches that it supports, in addition to the model's dtype."""
    implementations: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    """By name of an operation: a function that is traced in place of the operation's reference."""

    stages_of: Target | None = None
    """The target whose `encode` this one uses: a stage that is traced for one of them is cached for both."""

    fixed_sizes: bool = False
    """Whether its programs have a block table of the greatest length only, so that no size of a stage is dynamic.

    Such stages are traced several times as fast; `encode` must then also support a `Recorded`
    (compile/program/record.py).
    """

    supports_packed: bool = False
    """Whether it compiles the operations of packed weights (`quant_linear`, `quant_experts`, …)."""

    activations: tuple[str, ...] = ()
    """The dtypes to which products with packed weights may round activations (`Quantised.activations`); floats always
    work."""

    supports_loras: bool = False
    """Whether it compiles `lora_shrink` and `lora_expand`, and its executor fills slots (`LoraExecutor`)."""

    @abstractmethod
    def encode(self, function: Function, exported: ExportedProgram) -> bytes:
        """A traced stage in the form that `lower` receives and the compile cache stores. It has no access to options.

        Nodes have no stack traces, because collecting them takes a fifth of the time of tracing.
        """
        ...

    def prepare(self) -> None:
        """Imports and tables that `encode` needs: called once before stages are traced in forked processes."""
        return

    @abstractmethod
    def lower(
        self, program: EncodedProgram, folder: Path, options: Options, store: ModuleStore, dump_dir: Path | None
    ) -> AbstractContextManager[Callable[[], str]]:
        """Starts to write the executable part of a bundle into `folder`, which exists.

        Call the value of the `with` block to wait for the end; it returns a short text for the progress line. Leaving
        the block ends every process that still runs. bringup writes the weights in the meantime. `store` caches
        expensive results. `dump_dir`, an existing folder, receives intermediate forms as text files. Raises BU401 for a
        program that the compiler rejects.
        """
        ...

    @abstractmethod
    def load(
        self, folder: Path, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
    ) -> Executor:
        """An executor for the bundle in `folder`, which may be removed afterwards. `weights`, by name, are memory maps
        of the bundle's file, or copies in memory if `reads_weights` returns true.

        `device` has passed `check_device`; None is the default device. Raises OSError, ValueError, RuntimeError or
        LookupError for files that are not a program of this target, BU609 for weights that do not fit.
        """
        ...

    def layout(self, graph: Graph) -> Adapter | None:
        """Physical buffers as rules over the graph's parameters (adapters/apply/fuse.py); None: as declared."""
        return None

    def cache_key(self, options: Options) -> Mapping[str, str] | None:
        """Other inputs that affect the result, by name; None if they are unknown, so that nothing is cached.

        The value for default options is in the key of every traced stage, because stages do not depend on options.

        Every key already contains the target's name, options, source files with everything that they import, its
        distribution's version and those of `requires`.
        """
        return {}

    def estimate(self, weights: Sequence[TensorInfo], options: Options) -> Estimate:
        """Memory for a program with these weights, tied ones once. The default is the memory of tracing."""
        return TRACING

    def emit(self, phase: str, program: EncodedProgram, options: Options, dump_dir: Path | None) -> bytes:
        """The file of one of `phases`. `dump_dir` as for `lower`."""
        raise fail("BU008", f"target `{self.name}` has no phase `{phase}`")

    def devices(self) -> Sequence[str]:
        """The devices of this machine that `run --executor NAME` accepts; empty if there is no choice."""
        return ()

    def reads_weights(self, device: str | None) -> bool:
        """Whether `load` receives weights in memory of the process, in huge pages, and not as maps of their file.

        A target whose kernels read weights in place runs faster this way; opening a bundle takes longer, and processes
        do not share the memory. `device` is as in `load`.
        """
        return False

    def check_device(self, name: str) -> None:
        """Raises BU018 for a device that this target does not have."""
        known = self.devices()
        if name not in known:
            only = f"it has {', '.join(known)}" if known else f"leave it out: {self.name} has one device"
            message = f"a {self.name} bundle has no executor `{name}`"
            raise fail("BU018", message, help=did_you_mean(name, known) or only)
