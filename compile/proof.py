"""The steps that a session took beside a reference: where they part first, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from bringup import __version__
from bringup.adapters.arrays import mapped
from bringup.adapters.materialise import materialise
from bringup.adapters.readers.safetensors import read_header
from bringup.compile.activations import LOGITS, Saved, mismatched, not_finite, save_activations
from bringup.compile.bisect.diagnose import Departure, bisect, module_departs, weights_changed
from bringup.compile.bisect.eager import Eager, culprit
from bringup.compile.bundle import WEIGHTS
from bringup.compile.feeds import Feed
from bringup.compile.job import Job
from bringup.compile.parity import Layer, Parity, compare
from bringup.compile.pipeline import layout_of
from bringup.compile.reference import INPUT, record
from bringup.compile.session import Session
from bringup.compile.steps import make_step
from bringup.diagnostics import BringupError, Diagnostic
from bringup.graphs.module import Const


class Referring(Protocol):
    """Who is right: transformers, or a file."""

    @property
    def name(self) -> str: ...
    def logits(self, tokens: list[int]) -> np.ndarray | None: ...
    def activations(self, tokens: list[int]) -> dict[str, np.ndarray]: ...


class Proof:
    """What was run, and what should have come of it."""

    def __init__(
        self, session: Session, job: Job, reference: Referring, tokens: list[int], feeds: Sequence[Feed]
    ) -> None:
        self.session, self.job, self.reference, self.tokens, self.feeds = session, job, reference, tokens, feeds
        self.eager = Eager(job, session.max_seq_len)
        logits = reference.logits(tokens)
        self.has_logits = logits is not None
        self.wanted = self._own_logits() if logits is None else logits
        self.departure: Departure | None = None
        if self.has_logits and not np.isfinite(self.wanted).all():
            raise self._no_numbers()

    def explain(self, parity: Parity, *, source: str, bundled: bool, bisect: bool) -> None:
        """Adds the table of modules, and what is at fault when something is."""
        departing = None if parity.ok else self._departing(parity.tolerance)
        parity.modules = self._modules(departing or self.feeds[0], source)
        if bundled and (departing or bisect):
            parity.findings += self._changed_weights()
            if parity.findings:
                return
        module = culprit(parity.modules, parity.tolerance)
        if module and (departing or not self.has_logits):
            sources = tuple(name for name in self.job.plan.entries if name.startswith(f"{module.name}."))
            parity.findings.append(module_departs(parity.modules, module, parity.reference, parity.tolerance, sources))
        if bisect:
            self._bisect(parity)
        if departing and not parity.findings:
            parity.findings.append(_unexplained(parity, departing, bisected=bisect))

    def _no_numbers(self) -> BringupError:
        """BU708 for the first module of the reference that gives NaN or infinity."""
        given = {**self.reference.activations(self.tokens), LOGITS: self.wanted}
        name = next(name for name, array in given.items() if not np.isfinite(array).all())
        return not_finite(self.reference.name, name, given[name])

    def _own_logits(self) -> np.ndarray:
        step = make_step(self.tokens, 0, len(self.tokens), self.session.max_seq_len)
        return self.eager(step).float().numpy()

    def _departing(self, tolerance: float) -> Feed:
        """The first step whose logits are not the reference's; the furthest off where each by itself is near enough."""
        found = [(feed, compare(feed.entry, feed.logits, feed.rows(self.wanted))) for feed in self.feeds]
        first = (feed for feed, error in found if error.relative > tolerance or error.wrong)
        return next(first, max(found, key=lambda pair: pair[1].relative)[0])

    def _modules(self, feed: Feed, source: str) -> list[Layer]:
        """Each module in that step, after those of its run that came before."""
        before = [other for other in self.feeds if other.run == feed.run and other.end <= feed.first]
        for earlier in before:
            self.eager(earlier.step)
        given = self.reference.activations(self.tokens)
        rows = {name: array[feed.first : feed.end] for name, array in given.items() if len(array) == len(self.tokens)}
        layers, odd = self.eager.layers(feed.step, rows)
        if odd and isinstance(self.reference, Saved):
            name = next(iter(odd))
            theirs = self.reference.arrays[name].shape
            raise mismatched(source, name, theirs, (theirs[0], *odd[name][1:]))
        return layers

    def _changed_weights(self) -> list[Diagnostic]:
        path = self.session.folder / WEIGHTS
        stored = {name: mapped(path, info) for name, info in read_header(path).items()}
        wanted = {name: array for name, array in self._weights().items() if name in stored}
        return list(weights_changed(stored, wanted, self.job.checkpoint.source))

    def _weights(self) -> dict[str, np.ndarray]:
        tables = {name: leaf.table(self.session.max_seq_len) for name, leaf in self.job.graph.leaves(Const)}
        return {**materialise(self.job.plan, self.job.checkpoint), **tables}

    def _bisect(self, parity: Parity) -> None:
        whole = self.session.interface
        sizes = [entry.num_tokens for entry in whole.entries if entry.num_tokens > 1]
        from bringup.compile.export import export_graph

        layout = layout_of(self.job.graph, self.session.max_seq_len, sizes, all_logits=whole.all_logits)
        program = export_graph(self.job.graph, layout)
        self.departure = bisect(
            program, self._weights(), self.session.executor, self.feeds, target=parity.target, dtype=parity.dtype
        )
        self.session.reset()
        if self.departure and self.departure.finding:
            parity.calls = {call.name: call.worst for call in self.departure.calls}
            parity.op = self.departure.found.op if self.departure.found else None
            parity.findings.append(self.departure.finding)

    def save(self, place: Path) -> list[Path]:
        """A file of the reference's activations; or a folder of that, ours, and the departing operation's tensors."""
        said = {"model": self.job.graph.config.family, "dtype": self.job.graph.dtype, "bringup": __version__}
        step = make_step(self.tokens, 0, len(self.tokens), self.session.max_seq_len)
        theirs = self.reference.activations(self.tokens)
        _, odd = self.eager.layers(
            step, theirs
        )  # what it calls by a name of ours and means otherwise: a router's scores
        theirs = {name: array for name, array in theirs.items() if name.removesuffix(INPUT) not in odd}
        if self.has_logits:
            theirs[LOGITS] = self.wanted
        if place.suffix == ".safetensors":
            return [save_activations(place, theirs, self.tokens, reference=self.reference.name, **said)]
        ours = record(self.eager.module, lambda: self.eager(step))
        paths = [
            save_activations(
                place / "reference.safetensors", theirs, self.tokens, reference=self.reference.name, **said
            ),
            save_activations(place / "ours.safetensors", ours, self.tokens, reference="bringup, run by torch", **said),
        ]
        if self.departure and self.departure.found:
            found = self.departure.found
            tensors = {f"input:{name}": array for name, array in found.inputs.items()}
            tensors |= {"torch": found.ours, "compiled": found.compiled}
            where = {"op": found.op.target, "call": found.op.call, "entry": found.op.entry}
            paths.append(save_activations(place / "op.safetensors", tensors, self.tokens, **where, **said))
        return paths


def _unexplained(parity: Parity, departing: Feed, *, bisected: bool) -> Diagnostic:
    """BU702: every module is right, the logits are not."""
    count = len(parity.modules)
    if bisected:
        said = f"all {count} modules agree with {parity.reference}, and the program run by torch with `{parity.target}`"
        said, help = (
            f"{said}; the logits of `{departing.entry}` do not",
            "export is at fault: it traced another program",
        )
    else:
        said = f"all {count} modules agree with {parity.reference} when run by torch in `{departing.entry}`, "
        said += f"the compiled program for `{parity.target}` does not"
        help = "the lowering is at fault; --bisect names the operation, `--target torch` runs without it"
    return Diagnostic(code="BU702", message=said, help=help)
