"""Paths as CI services and users write them: relative to the repository, or to the current folder."""

from __future__ import annotations

import os
from pathlib import Path

from bringup.diagnostics import Diagnostic
from bringup.installed import is_installed
from bringup.spec import Site


def repository() -> Path:
    """The root for paths in CI services: GITHUB_WORKSPACE, the folder with `.git`, or the current one."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if workspace:
        return Path(workspace).resolve()
    here = Path.cwd().resolve()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def in_repository(file: str) -> str | None:
    """The path of an existing file from the repository's root; None outside of it, and for installed packages."""
    if not os.path.isfile(file):  # noqa: PTH113  False, too, for what cannot be a path
        return None
    path, root = Path(file).resolve(), repository()
    if not path.is_relative_to(root) or is_installed(path):
        return None
    return path.relative_to(root).as_posix()


def site_in_repository(*sites: Site | None) -> tuple[Site, str] | None:
    """The first of the sites that is in the repository, and its path there."""
    found = ((site, in_repository(site.file)) for site in sites if site)
    return next(((site, path) for site, path in found if path), None)


def file_of(finding: Diagnostic) -> str:
    """The checkpoint's file of a finding, with the line if it has one; "" without a file."""
    return f"{from_here(finding.file)}:{finding.line}" if finding.line else from_here(finding.file)


def from_here(file: str) -> str:
    """A path, relative to the current folder if it is below it. Links are not followed."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
