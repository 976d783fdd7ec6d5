"""The facts of `bringup doctor` about the machine, from /proc and /sys alone."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from bringup.cli.environment.health import Fact
from bringup.compile.gpu.driver.hip_library import NAME, RELEASES
from bringup.render.words import plural, size
from bringup.system.processors import processors

PROC, SYS = Path("/proc"), Path("/sys")
# Instructions that IREE's code generation uses if present; for avx512 the families, not each bit.
FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
            "amx_bf16", "amx_int8", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")  # fmt: skip
DRIVERS = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so", "vulkan": "libvulkan.so.1"}
LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64", "/opt/rocm/lib")
LITTLE = 2e9  # bytes of memory: enough for GPT-2 only


def devices() -> Iterator[Fact]:
    """Processor, memory, graphics cards, and IREE's devices."""
    text = _read(PROC / "cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    words = set(flags[1].split()) if flags else set[str]()
    known = [feature for feature in FEATURES if feature in words]
    yield Fact("processor", f"{model[1] if model else platform.machine()}, {plural(processors(), 'core')}")
    slow = {"avx", "avx2"} & words == {"avx"} or (
        platform.machine() == "x86_64" and "avx2" not in words and bool(words)
    )
    yield Fact(
        "instructions",
        " ".join(known) or "unknown",
        "the processor has no avx2: matrix products will be slow" if slow else "",
        "in a virtual machine, pass the host's processor through (qemu: -cpu host)",
    )
    yield _memory()
    yield Fact("nvidia", ", ".join(_nvidia()) or "none")
    yield Fact("amd", ", ".join(_amd()) or "none")
    loadable = [name for name, library in DRIVERS.items() if _is_there(library)]
    yield Fact("iree drivers", ", ".join(["local-task", "local-sync", *loadable]))


def _memory() -> Fact:
    info = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read(PROC / "meminfo"), re.MULTILINE))
    total, free = (1024 * int(info.get(name, 0)) for name in ("MemTotal", "MemAvailable"))
    limit = _read(SYS / "fs/cgroup/memory.max").strip()
    capped = f", limited to {size(int(limit))} by its control group" if limit.isdecimal() else ""
    room = min(free, int(limit)) if limit.isdecimal() else free
    short = f"only {size(room)} of memory can be had" if total and room < LITTLE else ""
    fix = "close other programs, or raise the limit; `bringup compile --dry-run` prints the need"
    return Fact("memory", f"{size(total)}, {size(free)} available{capped}", short, fix)


def _nvidia() -> Iterator[str]:
    """Cards by name, from the kernel driver."""
    version = re.search(r"Kernel Module\D*([\d.]+)", _read(PROC / "driver/nvidia/version"))
    for card in sorted((PROC / "driver/nvidia/gpus").glob("*/information")):
        name = re.search(r"^Model:\s*(.+)$", _read(card), re.MULTILINE)
        yield name[1] if name else card.parent.name
    if version:
        yield f"driver {version[1]}"


def _amd() -> Iterator[str]:
    """Cards of the kernel's compute driver, and the library that launches kernels on them.

    Processors are nodes of that driver as well, but have no gfx target.
    """
    for node in sorted((SYS / "class/kfd/kfd/topology/nodes").glob("*/properties")):
        target = re.search(r"^gfx_target_version\s+([1-9]\d*)$", _read(node), re.MULTILINE)
        if target:
            version = int(target[1])
            yield f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"
    if any(_is_there(NAME + release) for release in RELEASES):
        yield "HIP runtime"


def _is_there(library: str) -> bool:
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *LIBRARIES]
    if rocm := os.environ.get("ROCM_PATH"):
        folders.append(str(Path(rocm, "lib")))
    folders += [f"/usr/lib/{platform.machine()}-linux-gnu"]
    return any(Path(folder, library).exists() for folder in folders)


def limits() -> Iterator[Fact]:
    """Limits of this shell that affect large models."""
    for name, kind, least, option in (
        ("address space", resource.RLIMIT_AS, 64e9, "-v"),
        ("data", resource.RLIMIT_DATA, 64e9, "-d"),
        ("file size", resource.RLIMIT_FSIZE, 20e9, "-f"),
    ):
        limit = resource.getrlimit(kind)[0]
        unlimited = limit == resource.RLIM_INFINITY
        wrong = "" if unlimited or limit >= least else f"this shell limits {name} to {size(limit)}"
        yield Fact(name, "unlimited" if unlimited else size(limit), wrong, f"ulimit {option} unlimited")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wrong = "" if files >= 512 else f"this shell lets a process open {files} files; a sharded checkpoint has hundreds"
    yield Fact("open files", str(files), wrong, "ulimit -n 4096")


def _read(path: Path) -> str:
    """A file of the kernel's; "" without one."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
