"""Opens a bundle for running. Imports torch only if the bundle's target is torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.adapters.checkpoints.arrays import mapped
from bringup.adapters.checkpoints.arrays import resident as read_resident
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.arguments import path as as_path
from bringup.compile.bundle.folder import TOKENIZER, WEIGHTS, check_files, read_manifest, steady
from bringup.compile.bundle.manifest import AGAIN, program_of
from bringup.compile.program.program import Executor, Interface
from bringup.compile.targets.registry import of_bundle
from bringup.compile.targets.requirements import check_installed
from bringup.diagnostics import BringupError, fail
from bringup.system.memory import available_bytes

if TYPE_CHECKING:
    from bringup.compile.text.tokenizer import Tokenizer

MOST_OF_MEMORY = 0.8  # the share of available memory that weights may take; mapped ones need not stay in memory


@dataclass(slots=True)
class Opened:
    """The opened bundle of a session or a batch. `device` is the executor's name that was requested."""

    manifest: dict[str, Any]
    executor: Executor
    interface: Interface
    folder: Path
    seconds: float = 0.0
    device: str | None = None

    def weights(self) -> dict[str, np.ndarray]:
        """The bundle's weights by name, mapped from its file."""
        return _weights(self.folder, self.manifest)

    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer. Raises BU014 if it has none, BU608 if it is not the one it was compiled with."""
        from bringup.compile.text.tokenizer import load_tokenizer

        if not (self.folder / TOKENIZER).is_dir():
            help = (
                "give token ids: --tokens 1,2,3, or `tokens` in the lines of --batch; or compile with --tokenizer PATH"
            )
            raise fail("BU014", f"`{self.folder}` has no tokenizer", help=help)
        _check_tokenizer(self.folder, self.manifest)
        return load_tokenizer(self.folder / TOKENIZER / "tokenizer.json", trusted=True)


def eos_of(folder: Path, manifest: Mapping[str, Any]) -> frozenset[int]:
    """The ids that end a text of an opened bundle, also if its tokenizer cannot be loaded; none if it has none. Raises
    BU608 as `Opened.tokenizer` does.
    """
    from bringup.compile.text.sidecar_files import written_eos

    if not (folder / TOKENIZER).is_dir():
        return frozenset()
    _check_tokenizer(folder, manifest)
    return written_eos(folder / TOKENIZER)


def _check_tokenizer(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raises BU608 for other files: the bundle may have been replaced since it was opened."""
    files = {name: digest for name, digest in manifest["files"].items() if name.startswith(f"{TOKENIZER}/")}
    check_files(folder, {"files": files})


def open_bundle(bundle: str | PathLike[str], executor: str | None) -> Opened:
    """Opens a bundle. Raises BU603 for an invalid one, BU609 if its weights do not match its program, BU018 for an
    unknown device, BU923 if its target is not installed, BU922 if a package that it runs with is not.

    A bundle that is replaced meanwhile is opened again: all parts are from one compile.
    """
    start = time.perf_counter()
    folder = Path(as_path("bundle", bundle))
    while True:
        with steady(folder) as same:
            try:
                opened = _opened(folder, executor)
            except (OSError, RuntimeError, BringupError):
                if same():
                    raise
                continue  # a compile has replaced the bundle meanwhile
            if same():
                opened.seconds = time.perf_counter() - start
                return opened


def opened_files(bundle: str | PathLike[str]) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """The folder, the manifest and the weights of a bundle, without an executor. Raises BU603 for an invalid one."""
    folder = Path(as_path("bundle", bundle))
    manifest = read_manifest(folder)
    return folder, manifest, _weights(folder, manifest)


def _opened(folder: Path, executor: str | None) -> Opened:
    manifest = read_manifest(folder)
    registered = of_bundle(manifest)
    target = registered.target
    check_installed(registered, target.runs_with)
    if executor is not None:
        target.check_device(as_path("executor", executor))
    interface = Interface.from_json(manifest["interface"])
    weights = _weights(folder, manifest, resident=target.reads_weights(executor))
    with program_of(folder, manifest["files"]):
        running = target.load(folder, interface, weights, executor)
    return Opened(manifest, running, interface, folder, device=executor)


def _weights(folder: Path, manifest: dict[str, Any], *, resident: bool = False) -> dict[str, np.ndarray]:
    """Every weight; a tied one is the same memory under two names.

    They are mapped from their file, or `resident`: read into memory if the system can spare it.
    """
    path = folder / WEIGHTS
    try:
        tensors = read_header(path)
    except BringupError as error:
        raise BringupError(*(replace(finding, help=AGAIN) for finding in error.findings)) from error
    if resident and _has_room(sum(info.nbytes for info in tensors.values())):
        arrays = read_resident(path, tensors)
    else:
        arrays = {name: mapped(path, info) for name, info in tensors.items()}
    return arrays | {name: arrays[first] for name, first in manifest["aliases"].items() if first in arrays}


def _has_room(nbytes: int) -> bool:
    available = available_bytes()
    return available is None or nbytes < MOST_OF_MEMORY * available
