"""For tests of checkpoints and adapters: assertions, and pytest's fixture `bringup_check`.

The package registers the fixture (entry point `pytest11`); a test module may also import the functions. None needs
torch, except `assert_same_logits` and `assert_ranks`.

    def test_the_checkpoint_fits(bringup_check):
        bringup_check("my_model.py", "hf://org/name")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from bringup.compile.parity.parity import Parity
    from bringup.diagnostics import Diagnostic, Report

Word = str | os.PathLike[str]
Check = Callable[..., "Report"]


def check_fits(model: Word | None = None, checkpoint: Word | None = None, **options: Any) -> Report:
    """The report of `bringup check MODEL --checkpoint SRC`: only headers are read, of a remote checkpoint too.

    `options` are those of `bringup.open_job`. A checkpoint that cannot be opened is a finding as well.
    """
    from bringup.adapters.sources.open_checkpoint import Access
    from bringup.compile.check.checker import check_job
    from bringup.compile.job import open_job
    from bringup.diagnostics import BringupError, Report

    options = {"access": Access(headers_only=True), **options}
    try:
        return check_job(open_job(model, checkpoint, **options))
    except BringupError as error:
        return Report(str(model or ""), list(error.findings))


def assert_fits(
    model: Word | None = None, checkpoint: Word | None = None, *, warnings: bool = True, **options: Any
) -> Report:
    """Fails the test with every finding's code, message and help, unless the checkpoint fits the graph.

    `warnings`: whether warnings fail it too.
    """
    __tracebackhide__ = True
    from bringup.diagnostics import Severity

    report = check_fits(model, checkpoint, **options)
    found = [finding for finding in report.findings if warnings or finding.severity is Severity.ERROR]
    if found:
        _fail(report.model, found)
    return report


def assert_same_logits(model: Word, checkpoint: Word, **options: Any) -> None:
    """Fails the test, with the report of `bringup verify`, unless logits equal transformers'; `options` are those of
    `bringup.verify`. Skips it if torch or transformers is not installed."""
    __tracebackhide__ = True
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from bringup.compile.verify.command import verify

    _assert_agrees(model, lambda: verify(str(model), checkpoint, **options))


def assert_ranks(model: Word, checkpoint: Word, *, tp: int = 1, ep: int = 1, pp: int = 1) -> None:
    """Fails the test, with the report of `bringup verify --tp N`, unless all ranks together compute the logits of the
    undivided graph, and if an axis does not divide. Skips it if torch is not installed."""
    __tracebackhide__ = True
    pytest.importorskip("torch")
    from bringup.adapters.apply.parallel import Parallel
    from bringup.compile.ranks.verify import verify_ranks

    _assert_agrees(model, lambda: verify_ranks(str(model), checkpoint, parallel=Parallel(tp=tp, ep=ep, pp=pp)))


def assert_shapes(arrays: Mapping[str, Any], checkpoint: Word, model: Word | None = None, **options: Any) -> None:
    """Fails the test unless the arrays (by parameter, of any library) have all shapes that the graph declares.

    `model` is needed if the checkpoint's architecture is not that of a family of bringup. `options` are those of
    `bringup.open_job`.
    """
    __tracebackhide__ = True
    from bringup.adapters.sources.open_checkpoint import Access
    from bringup.compile.job import open_job
    from bringup.diagnostics import BringupError

    options = {"access": Access(headers_only=True), **options}
    try:
        signature = open_job(model, checkpoint, **options).graph.signature()
    except BringupError as error:
        _fail(str(model or checkpoint), error.findings)
    expected = {name: declared.storage[0] for name, declared in signature.items()}
    actual = {name: tuple(array.shape) for name, array in arrays.items()}
    wrong = [f"{name}: expected {expected.get(name)}, found {actual.get(name)}" for name in sorted({*expected, *actual})
             if expected.get(name) != actual.get(name)]  # fmt: skip
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def _assert_agrees(model: Word, compare: Callable[[], Parity]) -> None:
    """Fails the test with the findings or the report of a comparison that does not agree."""
    __tracebackhide__ = True
    from bringup.diagnostics import BringupError
    from bringup.render.parity import parity_text
    from bringup.render.terminal import Paint

    try:
        parity = compare()
    except BringupError as error:
        _fail(str(model), error.findings)
    if not parity.ok:
        pytest.fail(parity_text(parity, str(model), Paint()), pytrace=False)


def _fail(model: str, findings: Sequence[Diagnostic]) -> NoReturn:
    """Fails the test with every finding's code, message and help."""
    __tracebackhide__ = True
    from bringup.render.words import plural

    lines = [f"[{finding.code}] {finding.message}\n    help: {finding.help}" for finding in findings]
    pytest.fail(f"{model}: {plural(len(findings), 'finding')}\n" + "\n".join(lines), pytrace=False)


@pytest.fixture
def bringup_check() -> Check:
    """`assert_fits`, for tests without an import."""
    return assert_fits
