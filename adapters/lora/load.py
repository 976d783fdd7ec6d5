"""Combines an adapter's files and a base to a LoRA of the base's graph, with all findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bringup.adapters.lora.base import Base
from bringup.adapters.lora.derive import derive
from bringup.adapters.lora.expressions import Unbounded
from bringup.adapters.lora.factors import Lora, Pair
from bringup.adapters.lora.files import LoraFiles
from bringup.adapters.lora.named import disagreements
from bringup.adapters.lora.pairing import paired
from bringup.adapters.lora.trained import Trained
from bringup.diagnostics import BringupError, Diagnostic, Severity, fail
from bringup.grouping import digits, listed
from bringup.spec import TensorInfo

OF_SIZES = ("BU164", "BU165")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """`copies` are tensors of the base, by its names, that the adapter's files also contain.

    `heads` are tied heads with the values of an embedding, by the embedding's name in the base. `transposed` are
    tensors with the values of another one, transposed. `base` is the one that the files were read for. `trained` are
    the values that replace tensors of the base, by its names.
    """

    files: LoraFiles
    lora: Lora
    pairs: Sequence[Pair]
    copies: Mapping[str, TensorInfo]
    heads: Mapping[str, str]
    base: Base
    trained: Mapping[str, Trained] = field(default_factory=dict[str, Trained])
    transposed: Sequence[tuple[TensorInfo, TensorInfo]] = ()
    findings: Sequence[Diagnostic] = ()

    def raise_if_errors(self) -> None:
        """Raises BringupError with every finding if one is an error."""
        if any(finding.severity is Severity.ERROR for finding in self.findings):
            raise BringupError(*self.findings)

    def refuse_if_merged_only(self) -> None:
        """Raises every error, and BU161 for an adapter that is more than factors."""
        self.raise_if_errors()
        if note := self.merged_only():
            raise BringupError(replace(note, severity=Severity.ERROR))

    def merged_only(self) -> Diagnostic | None:
        """A note of BU161 on an adapter that is more than factors."""
        if not (keys := self.files.config.more):
            return None
        help = "merge it (`bringup lora merge`), and use that as the checkpoint"
        message = f"an adapter with {listed(keys)} can only be merged into its base, not applied unmerged"
        return Diagnostic(code="BU161", severity=Severity.NOTE, message=message, help=help, file=str(self.files.path))


def load(files: LoraFiles, base: Base) -> Loaded:
    """Reads headers only.

    Raises BU160 for an expression of the config that takes too long to match.
    """
    try:
        return _load(files, base)
    except Unbounded as error:
        help = "list the modules' names in `target_modules`, `exclude_modules`, `rank_pattern` and `alpha_pattern`"
        raise fail("BU160", f"an expression in `{files.path}`: {error}", help=help, file=str(files.path)) from None


def _load(files: LoraFiles, base: Base) -> Loaded:
    found = paired(files.checkpoint.headers, files.spelling, files.config, base)
    lora, misfits = derive(base, found.pairs)
    findings = [*files.checkpoint.findings, *files.findings, *found.findings, *misfits]
    if files.findings:  # the config has more than factors, which the other tensors belong to
        findings = [finding for finding in findings if finding.code != "BU168"]
    if found.pairs and not any(finding.code in ("BU162", "BU163", "BU164") for finding in findings):
        findings += disagreements(found.pairs, files.config, base, found.trained)
    return Loaded(
        files=files,
        lora=lora,
        pairs=found.pairs,
        copies=found.copies,
        heads={head: embedding for embedding, head in base.tied.items()},
        base=base,
        transposed=found.transposed,
        trained=found.trained,
        findings=_together(findings),
    )


def _together(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """One finding for factors with the same error: with a wrong base or config, many have it."""
    groups: dict[object, list[Diagnostic]] = {}
    for one in findings:
        kind = digits(one.sources[0])[0] if one.sources else one.message
        groups.setdefault(one.code if one.code in OF_SIZES else (one.code, kind), []).append(one)
    joined: list[Diagnostic] = []
    for first, *others in groups.values():
        sources = tuple(dict.fromkeys(name for one in (first, *others) for name in one.sources))
        more = len(sources) - len(first.sources)
        message = f"{first.message}; so it is with {more} more" if more else first.message
        joined.append(replace(first, message=message, sources=sources))
    return joined
