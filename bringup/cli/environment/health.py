"""The facts of `bringup doctor` about bringup itself, other packages, and the folders it writes to."""

from __future__ import annotations

import locale
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

from bringup import __version__
from bringup.cli.environment.packages import COMPILERS, FEATURES, PACKAGES, Package, installed
from bringup.render.words import size

MAIN_JOB, SIDE_FEATURE = "error", "warning"  # a problem that stops compile and run; or another feature
RUNNER = "llvmlite"  # all that `run` needs for a bundle for `cpu`, besides the packages of bringup itself
MISSING = " is not installed"  # the end of the message on a package
ROOM = 5e9  # bytes: a model of a few billion parameters and its bundle
_MOST_FILES = 20_000  # of a cache whose size is printed


@dataclass(frozen=True, slots=True)
class Fact:
    """One line; with a problem, its fix and its severity. `absent` is a package that is not installed."""

    name: str
    value: str
    problem: str = ""
    fix: str = ""
    weight: str = SIDE_FEATURE
    absent: bool = False

    def as_json(self) -> dict[str, str]:
        return {"severity": self.weight, "message": self.problem, "fix": self.fix}


def itself() -> Iterator[Fact]:
    """bringup, Python, and the encoding of its output."""
    yield Fact("bringup", __version__)
    yield Fact("python", f"{platform.python_version()} on {platform.platform()}")
    encoding = locale.getpreferredencoding(do_setlocale=False)
    wrong = "" if encoding.lower().replace("-", "") == "utf8" else f"the locale's encoding is {encoding}, not UTF-8"
    yield Fact("locale", encoding, wrong, "export LC_ALL=C.UTF-8")
    package = Path(__file__).parents[2]
    lost = [name for name in ("graphs", "adapters", "compile") if find_spec(f"bringup.{name}") is None]
    if lost:
        text = f"`bringup.{lost[0]}` is missing: the installation is incomplete"
        yield Fact("checkout", str(package.parent), text, "pip install --force-reinstall --no-deps bringup", MAIN_JOB)
    elif (package.parent / "pyproject.toml").is_file():
        links = [package / name for name in ("graphs", "adapters", "compile")]
        wrong = next((f"`{link}` is no link to a folder" for link in links if not link.is_dir()), "")
        fix = f"git -C {package.parent} config core.symlinks true && git -C {package.parent} checkout -- bringup"
        yield Fact("checkout", str(package.parent), wrong, fix)


def packages() -> Iterator[Fact]:
    """Versions, without importing anything.

    A problem is an error if it stops `compile` or `run`, whichever of them is installed. If only the packages of `run`
    are, those of `compile` are not missing; if neither is installed, all of them are.
    """
    tested, runs = _tested(), bool(installed(RUNNER))
    compiles = any(map(installed, COMPILERS)) or not runs
    for package in PACKAGES:
        found, wanted = installed(package.name), tested.get(_canonical(package.name), "")
        main = package.extra == "" or package.name == RUNNER or (package.extra == "compile" and compiles)
        weight = MAIN_JOB if main else SIDE_FEATURE
        if not found:
            message = f"`{package.name}`{MISSING}" if main else ""
            value = f"missing; {package.install}"
            yield Fact(package.name, value, message, package.install, weight, absent=True)
        elif not _is_there(package):
            fix = f"pip install --force-reinstall '{package.name}=={found}'"
            yield Fact(package.name, found, f"`{package.name}` is installed, but its files are gone", fix, weight)
        else:
            wrong = "" if _fits(found, wanted) else f"`{package.name}` is {found}; bringup is tested with {wanted}"
            yield Fact(package.name, found, wrong, f"pip install '{package.name}{wanted}'", weight)


def features(facts: Iterable[Fact]) -> Iterator[Fact]:
    """What works and what does not, from the facts of the packages."""
    by_name = {fact.name: fact for fact in facts}
    of_bringup = [package.name for package in PACKAGES if not package.extra]
    commands = {package.name: package.install for package in PACKAGES}
    for feature, names in FEATURES.items():
        missing = [name for name in (*of_bringup, *names) if by_name[name].absent]
        faulty = [name for name in (*of_bringup, *names) if by_name[name].problem and name not in missing]
        if missing:
            fixes = dict.fromkeys(commands[name] for name in missing)
            yield Fact(feature, f"not installed: {', '.join(missing)}; {' && '.join(fixes)}")
        else:
            yield Fact(feature, f"unsure: see {', '.join(faulty)} below" if faulty else "works")


def _is_there(package: Package) -> bool:
    try:
        return find_spec(package.module) is not None  # for `iree.compiler` it imports `iree`, which is an empty package
    except ModuleNotFoundError:
        return False


def _tested() -> dict[str, str]:
    """The versions that bringup requires: {`torch`: `<2.14,>=2.11`}. A checkout's pyproject.toml is never outdated."""
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    if pyproject.is_file():
        import tomllib

        project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
        texts = [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]
    else:
        texts = requires("bringup") or []
    wanted = (re.match(r"([\w.-]+)\s*([^;\[]*)", text) for text in texts)
    return {_canonical(found[1]): found[2].strip() for found in wanted if found}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _fits(version: str, wanted: str) -> bool:
    """Whether a version meets `>=2.11,<2.14`, `==3.13.0`. A local part (+cpu) is ignored."""
    have = _numbers(version.partition("+")[0])
    for condition in filter(None, wanted.split(",")):
        operator, number = re.match(r"\s*([<>=!~]*)\s*(.*)", condition).groups()  # type: ignore[union-attr]
        limit = _numbers(number)
        size = max(len(have), len(limit))
        ours, theirs = (numbers + (0,) * (size - len(numbers)) for numbers in (have, limit))
        holds = {">=": ours >= theirs, "<": ours < theirs, "==": ours == theirs, ">": ours > theirs}
        if not (holds | {"<=": ours <= theirs, "!=": ours != theirs}).get(operator, True):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.match(r"[\d.]*", version)[0].split(".") if number)  # type: ignore[index]


def places() -> Iterator[Fact]:
    """The folders that bringup writes to: their size, whether they are writable, and the free space."""
    from bringup.adapters.sources.cache_dirs import cache_folder, hub_cache

    yield _place("cache", cache_folder("").resolve(), "set XDG_CACHE_HOME to a folder of yours")
    yield _place("hugging face cache", hub_cache(), "set HF_HOME to a folder of yours")
    yield _place("temporary files", Path(tempfile.gettempdir()), "set TMPDIR to a folder of yours", MAIN_JOB)
    yield _place("working directory", Path.cwd(), "change to a folder of yours, or write elsewhere with -o")


def _place(name: str, folder: Path, fix: str, weight: str = SIDE_FEATURE) -> Fact:
    from bringup.system.os_errors import free_bytes

    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = free_bytes(existing)
    message = f"{folder} ({_held(folder)}{'' if free is None else f', {size(free)} free'})"
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Fact(name, message, f"`{existing}` cannot be written to", fix, weight)
    if free is not None and free < ROOM:
        return Fact(
            name, message, f"`{existing}` has {size(free)} free", "free some space: `bringup cache rm`, `df -h`"
        )
    return Fact(name, message)


def _held(folder: Path) -> str:
    """The size of a folder's files, as text."""
    if not folder.is_dir():
        return "not there yet"
    if folder in (Path.cwd(), Path(tempfile.gettempdir())):
        return "there"
    total, count = 0, 0
    for here, _, files in os.walk(folder):
        total += sum(os.lstat(os.path.join(here, name)).st_size for name in files)  # noqa: PTH118
        count += len(files)
        if count > _MOST_FILES:
            return f"more than {size(total)}"
    return size(total)


def hub() -> Iterator[Fact]:
    """Whether requests to the Hugging Face Hub are allowed, and whether there is a token, which is never printed."""
    flags = [
        name
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
    ]
    yield Fact("offline", f"yes, by {flags[0]}" if flags else "no")
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    stored = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    by = "HF_TOKEN" if os.environ.get("HF_TOKEN") else str(stored) if stored.is_file() else ""
    yield Fact("hugging face token", f"present, by {by}" if by else "none (only gated and private models need one)")
    yield Fact("colour", "yes" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else "no")
