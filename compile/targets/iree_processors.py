# pyright: reportMissingTypeStubs=false
"""What iree-compile knows of processors: their names, and the features of this machine."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache

from bringup.system.environment import minimal

HOST = "--iree-llvmcpu-target-cpu=host"
_DEVICE = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
_FEATURES = re.compile(r'cpu_features = "([^"]*)"')


@cache
def accepted_cpus() -> tuple[str, ...]:
    """The names that `--iree-llvmcpu-target-cpu` accepts in addition to `host` and `generic`, as iree-compile lists
    them.

    () if iree-compile is not installed or prints no such list.
    """
    _, _, names = _printed("module {}", "--iree-llvmcpu-target-cpu=help").partition("List of accepted CPUs: ")
    return tuple(names.partition("\n")[0].split(", ")) if names else ()


@cache
def host_flags() -> tuple[str, ...]:
    """The flags for the processor of this machine: HOST, or the features that it reports, if it hides some."""
    program = "util.func public @f() { util.return }"
    features = _FEATURES.search(_printed(program, HOST, "--compile-to=preprocessing"))
    return flags_of(features[1]) if features else (HOST,)


def flags_of(features: str) -> tuple[str, ...]:
    """The flags for a host with these features in IREE's form: `+avx512bf16,+avx512bw,-avx512bf16`.

    IREE adds the features that the name of the processor implies. A virtual machine may hide some of them, so that a
    feature is added and removed. LLVM obeys the last word; IREE 3.13 searches for the first, chooses tiles for
    instructions that LLVM may not use, and LLVM aborts.
    """
    words = features.split(",")
    reported = {word[1:]: word.startswith("+") for word in words}  # the last word of each
    if not any(word.startswith("+") and not reported[word[1:]] for word in words):
        return (HOST,)
    found = ",".join(f"+{name}" for name, has in reported.items() if has)
    return ("--iree-llvmcpu-target-cpu=generic", f"--iree-llvmcpu-target-cpu-features={found}")


def _printed(program: str, *flags: str) -> str:
    """What iree-compile prints; "" if it is not installed."""
    with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
        try:
            from iree.compiler.tools.binaries import find_tool

            command = [find_tool("iree-compile"), "-", *_DEVICE, *flags]
            done = subprocess.run(
                command, cwd=folder, input=program, capture_output=True, text=True, env=minimal(), check=False
            )
        except (ImportError, OSError, ValueError):  # ValueError: the package is installed, its program is missing
            return ""
    return done.stdout + done.stderr
