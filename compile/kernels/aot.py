"""Compiles kernels ahead of time and without a GPU, in parallel processes. Results are cached by their inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

import bringup
from bringup.compile.cache.store import Store
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.compiled import Compiled, compiled_from_json, compiled_to_json, kernel_to_json
from bringup.compile.kernels.kernel_key import KIND, inputs_of
from bringup.diagnostics import BringupError, fail

# Prefixes of environment variables of Triton, LLVM and ptxas. The worker does not get them: no cache key has them.
_LEFT_OUT = ("TRITON_", "LLVM_", "MLIR_", "NVPTX_", "AMDGCN_", "PTXAS_", "DISABLE_", "USE_IR_LOC")
_START = 4  # minimum number of kernels for each process: its start takes as long as compiling two of them


def compile_kernels(kernels: Iterable[Kernel], capability: str, store: Store | None) -> dict[Kernel, Compiled]:
    """Each distinct kernel, compiled for the architecture `capability`: `sm_80`, `gfx942`, ….

    Kernels in `store` are not compiled again; the others are added to it. Raises BU501 for a kernel that Triton cannot
    compile.
    """
    wanted = list(dict.fromkeys(kernels))
    keys = {kernel: inputs_of(kernel, capability) for kernel in wanted} if store else {}
    found: dict[Kernel, Compiled] = {}
    for kernel in wanted:
        if (cached := _cached(store, keys.get(kernel))) is not None:
            found[kernel] = cached
    for kernel, compiled, seconds in _compiled([kernel for kernel in wanted if kernel not in found], capability):
        found[kernel] = compiled
        if store and (inputs := keys[kernel]) is not None:
            payload = json.dumps(compiled_to_json(compiled)).encode()
            store.put(KIND, inputs, payload, what=f"{kernel.stem} for {capability}", seconds=seconds)
    return {kernel: found[kernel] for kernel in wanted}


def _cached(store: Store | None, inputs: Mapping[str, str] | None) -> Compiled | None:
    payload = store.get(KIND, inputs) if store and inputs is not None else None
    return None if payload is None else compiled_from_json(json.loads(payload))


Job = tuple[Kernel, Compiled, float]


def _compiled(kernels: list[Kernel], capability: str) -> Iterator[Job]:
    """Yields every kernel as soon as it is compiled, with the compile time in seconds."""
    if not kernels:
        return
    count = max(1, min(len(os.sched_getaffinity(0)), -(-len(kernels) // _START)))
    left: SimpleQueue[Kernel | None] = SimpleQueue()
    done: SimpleQueue[Job | None] = SimpleQueue()
    for kernel in [*kernels, *[None] * count]:
        left.put(kernel)
    with ThreadPoolExecutor(count) as threads:
        futures = [threads.submit(_serve, capability, count, left, done) for _ in range(count)]
        running = count
        while running:
            result = done.get()
            if result is None:
                running -= 1
            else:
                yield result
        for future in futures:
            future.result()


def _serve(capability: str, count: int, left: SimpleQueue[Kernel | None], done: SimpleQueue[Job | None]) -> None:
    """Compiles the kernels of the queue `left` in a separate process, up to a None. An error empties the queue."""
    try:
        with _worker() as worker:
            while (kernel := left.get()) is not None:
                start = time.perf_counter()
                compiled = worker(kernel, capability)
                done.put((kernel, compiled, time.perf_counter() - start))
    except BringupError:
        while not left.empty():
            left.get()
        for _ in range(count):
            left.put(None)
        raise
    finally:
        done.put(None)  # after a failure too: the future has the error


@contextmanager
def _worker() -> Generator[_Worker]:
    """A compiling process, which is ended with the block."""
    with TemporaryDirectory(prefix="bringup-triton-") as folder, TemporaryFile() as errors:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        environment |= {"TRITON_CACHE_DIR": folder, "PYTHONPATH": _search_path()}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bringup.compile.kernels.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
        try:
            yield _Worker(process, errors)
        finally:
            process.kill()
            process.communicate()


class _Worker:
    """Compiles one kernel after the other in a process."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    def __call__(self, kernel: Kernel, capability: str) -> Compiled:
        assert self._process.stdin
        assert self._process.stdout
        line = b""
        try:
            self._process.stdin.write(json.dumps([capability, kernel_to_json(kernel)]).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise self._failure(kernel, capability)
        return compiled_from_json(json.loads(line))

    def _failure(self, kernel: Kernel, capability: str) -> Exception:
        status = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        message = text.splitlines()[-1] if text else f"the compiler ended with status {status}"
        return fail(
            "BU501",
            f"the kernel `{kernel.stem}` does not compile for {capability}: {message}",
            help="install the version of Triton that `pip install bringup[gpu]` names; "
            "with that, please report it, with this message",
        )


def _search_path() -> str:
    """The folders in which this process found the package and Triton, as PYTHONPATH."""
    root = str(Path(bringup.__file__).resolve().parent.parent)
    return os.pathsep.join(dict.fromkeys([root, *(path for path in sys.path if path)]))
