"""`bringup check --fix` and `--diff`: prints and applies the edits that a check has proved."""

from __future__ import annotations

import sys
from difflib import unified_diff
from importlib.util import cache_from_source
from pathlib import Path
from typing import TextIO

from bringup.compile.fix.pyfile import EditConflict, PyFile
from bringup.diagnostics import Fix, Report
from bringup.installed import is_installed
from bringup.render.words import plural
from bringup.system.atomic import write_file


def repair(report: Report, stream: TextIO, *, write: bool) -> bool:
    """Prints the edits of a report as a diff and applies them; returns whether a file changed. Raises BU901, BU902."""
    findings = [finding for finding in report.findings if finding.fixes]
    edits: dict[Path, list[Fix]] = {}
    for fix in dict.fromkeys(fix for finding in findings for fix in finding.fixes):
        edits.setdefault(Path(fix.file).resolve(), []).append(fix)
    changed = False
    for path, fixes in edits.items():
        before = PyFile.read(path)
        try:
            after = before.edited(fixes)
        except EditConflict as error:
            print(f"note: the file changed after it was checked: {error}", file=sys.stderr)
            continue
        stream.write(_diff(before, after))
        if write and is_installed(path):
            print(f"note: `{path}` belongs to an installed package: copy it, and use --adapter FILE", file=sys.stderr)
        elif write:
            _replace(path, after)
            changed = True
    done = "fixed" if changed else "would fix"
    print(f"{done} {plural(len(findings), 'error')}" if findings else "nothing to fix for certain", file=sys.stderr)
    return changed


def _diff(before: PyFile, after: PyFile) -> str:
    here, path = Path.cwd(), before.path
    name = path.relative_to(here) if path.is_relative_to(here) else path
    old, new = ([line.rstrip("\r\n") for line in file.lines] for file in (before, after))
    return "".join(f"{line}\n" for line in unified_diff(old, new, str(name), str(name), lineterm=""))


def _replace(path: Path, file: PyFile) -> None:
    """Writes the file atomically, and invalidates its bytecode."""
    mode = path.stat().st_mode
    write_file(path, file.text.encode(file.encoding))
    path.chmod(mode)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)  # with the same size and second it would seem current
    for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None)]:
        if Path(sys.modules[name].__file__ or "").resolve() == path:
            del sys.modules[name]  # the next import runs it again
