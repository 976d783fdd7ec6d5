from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parent
# What takes longest, longest first: of several workers none is to wait at the end for one that has just begun.
LONGEST = (
    "models/test_families.py",
    "resources/",
    "compile/test_lowering.py",
    "compile/test_verify_modules.py",
    "report/",
    "cache/test_bundles.py",
    "compile/test_build.py",
    "compile/test_bisect.py",
    "codes/test_pages.py",
    "check/mutations/test_mutations.py",
    "check/test_experts.py",
    "compile/test_large_tokenizer.py",
    "compile/test_conversation.py",
    "compile/test_packed.py",
    "compile/test_verify.py",
    "cli/test_watch.py",
    "models/test_rounding.py",
    "models/test_nulls.py",
)
BY_FAMILY = "models/test_families.py"  # too long for one worker, and nothing of a family serves another
TOGETHER = ("tests/resources/", "tests/report/")


class ByFile(LoadFileScheduling):
    """Tests of a file stay together, for they share what they compile; of the file of all families, those of one.

    Those of a folder in TOGETHER share a process, or bundles, that take seconds to prepare.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.endswith(BY_FAMILY):
            return file + test.partition("[")[2].partition("-")[0]
        return next((folder for folder in TOGETHER if folder in file), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.path.relative_to(ROOT).as_posix()))


def _place(file: str) -> int:
    return next((number for number, name in enumerate(LONGEST) if file.startswith(name)), len(LONGEST))


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say the same on a developer's machine and in a step of GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "BRINGUP_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiles of one run of the tests, of all its workers, share a cache; nobody's own is read or written."""
    base = tmp_path_factory.getbasetemp()
    of_run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # a worker's folder is below the run's
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_COMPILE_CACHE", str(of_run / "compile-cache"))
        yield
