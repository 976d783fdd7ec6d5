"""Proof: compares the steps of a session with a reference, and finds the first difference and its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bringup import __version__
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.arrays import mapped
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.compile.bisect.diagnose import Bisection, Departure
from bringup.compile.bisect.eager import Eager
from bringup.compile.bisect.findings import code_departs, module_departs, weights_changed
from bringup.compile.bisect.locate import Place, located
from bringup.compile.bisect.modules import compared, compared_rounded, culprit, not_counterparts
from bringup.compile.bisect.observation import Observation
from bringup.compile.bundle.folder import WEIGHTS
from bringup.compile.emit import exported
from bringup.compile.job import Job
from bringup.compile.packed_job import as_compiled
from bringup.compile.parity.activations import FILE, LOGITS, Saved, mismatched, not_finite, save_activations
from bringup.compile.parity.feeds import Feed, ring_rows, sizes_of
from bringup.compile.parity.owners import counterparts, owners_by_name, renamed
from bringup.compile.parity.parity import Layer, Parity
from bringup.compile.parity.reference import INPUT, Observed, record
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.runtime.session import Session
from bringup.compile.targets.selection import selection_of
from bringup.compile.verify.evidence import GRAPH, Evidence, Referring, coarsest, exact
from bringup.compile.verify.scales import Scaled, Scales, taken_by
from bringup.diagnostics import Diagnostic
from bringup.graphs.core.module import Const
from bringup.system.new_files import new_files


class Proof:
    """The steps of a session, and the expected results.

    `rounded` computes the reference in the job's own dtypes; None if only `reference` exists. Raises BU708 if the
    reference has NaN or infinity.
    """

    def __init__(
        self,
        session: Session,
        job: Job,
        reference: Referring,
        tokens: list[int],
        feeds: Sequence[Feed],
        rounded: Callable[[], Observed] | None = None,
    ) -> None:
        self.session, self.job, self.reference, self.tokens, self.feeds = session, job, reference, tokens, feeds
        self.rounded = rounded
        self._refuse_nonsense(reference)
        theirs = rounded().logits(tokens) if rounded else None
        self.evidence = Evidence(job, sizes_of(session), reference, theirs, tokens, feeds)
        self.departure: Departure | None = None
        self.scales = Scales(self.evidence)
        self.scaled: dict[str, Scaled] = {}

    def compare(self, parity: Parity) -> None:
        """Adds the differences of the logits of every phase. In 16 bits, the graph in float32 is the first phase."""
        evidence = self.evidence
        parity.differences = [
            evidence.phase(entry.name)
            for entry in self.session.interface.entries
            if any(feed.entry == entry.name for feed in self.feeds)
        ]
        if evidence.rounds and evidence.is_exact and evidence.logits is not None:
            parity.differences.insert(0, evidence.exact())
        if parity.ok:  # otherwise the logits decide
            self.scaled = {
                found.entry: found for found in self.scales.worst(self.session.interface.entries, self.feeds)
            }
            parity.differences = [
                replace(each, scaled=self.scaled[each.phase].scale.excess) if each.phase in self.scaled else each
                for each in parity.differences
            ]

    def explain(self, parity: Parity, *, source: str, bundled: bool, bisect: bool) -> None:
        """Adds the table of modules, and the cause if there is a difference."""
        departing = None if parity.ok else self._departing(parity)
        of_graph = departing is not None and self._graph_departs(departing)
        in_rounding = departing is not None and not of_graph
        step = departing or self._wrapping() or self.feeds[0]
        parity.modules, observation = self._modules(step, source, in_rounding=in_rounding)
        if observation and self.evidence.logits is not None:
            other = not_counterparts(parity.modules, parity.tolerance, agrees=not of_graph)
            observation.exclude(other)
            parity.modules = [layer for layer in parity.modules if layer.name not in other]
        if bundled and (departing or bisect):
            parity.findings += self._changed_weights()
            if parity.findings:
                return
        if departing or self.evidence.logits is None:
            parity.findings += self._in_modules(parity, observation, of_graph=of_graph)
        if bisect:
            self._bisect(parity)
        if departing and not parity.findings:
            parity.findings.append(_unexplained(parity, departing, self.scaled.get(departing.entry), bisected=bisect))

    def _refuse_nonsense(self, reference: Referring) -> None:
        """Raises BU708 for the first module of a reference whose output has NaN or infinity."""
        logits = reference.logits(self.tokens)
        if logits is None or np.isfinite(logits).all():
            return
        given = {**reference.activations(self.tokens), LOGITS: logits}
        name = next(name for name, array in given.items() if not np.isfinite(array).all())
        raise not_finite(reference.name, name, given[name])

    def _departing(self, parity: Parity) -> Feed:
        """The first step whose logits differ; if each step is within the tolerance, the one with the largest error."""
        evidence = self.evidence
        graph = parity.differences[0].phase == GRAPH and not parity.differences[0].ok
        found = [evidence.exact(index) if graph else evidence.of("", [feed]) for index, feed in enumerate(self.feeds)]
        phases = {difference.phase for difference in parity.differences if not difference.ok}
        pairs = [(feed, error) for feed, error in zip(self.feeds, found, strict=True) if graph or feed.entry in phases]
        first = (feed for feed, error in pairs if not error.ok)
        return next(first, max(pairs, key=lambda pair: pair[1].excess)[0]) if pairs else self.feeds[0]

    def _wrapping(self) -> Feed | None:
        """The step in which the longest ring wraps around; it reads rows that a shorter prompt does not reach."""
        longest = max(ring_rows(self.session.interface), default=None)
        return next((feed for feed in self.feeds if longest is not None and feed.end > longest), None)

    def _graph_departs(self, feed: Feed) -> bool:
        """Whether the graph, run by torch in float32, differs in this step. Then the program is not the cause."""
        evidence = self.evidence
        if evidence.logits is None or not evidence.is_exact:
            return False
        return not evidence.exact(self.feeds.index(feed)).ok

    def _in_modules(self, parity: Parity, observation: Observation | None, *, of_graph: bool) -> Iterator[Diagnostic]:
        """BU701 for the module at fault, or for the code between modules.

        In 16 bits, and among modules whose inputs the reference lacks, it is the first module that departs.
        """
        modules, tolerance, place = parity.modules, parity.tolerance, Place(None, "")
        if observation:
            place = located(observation, modules, tolerance)
        of_outputs = [layer for layer in modules if layer.alone is None] if observation else modules
        if place.layer is None and (first := culprit(of_outputs, tolerance)):
            place = Place(first, "")
        if place.layer:
            sources = tuple(name for name in self.job.plan.entries if name.startswith(f"{place.layer.name}."))
            yield module_departs(modules, place, parity.reference, tolerance, sources)
        elif of_graph:
            yield code_departs(modules, place.before, parity.reference, tolerance)

    @cached_property
    def _names(self) -> dict[str, str]:
        """The names of the reference's modules, for those of ours whose counterpart has another name."""
        reference = self.reference
        modules = {name.partition(INPUT)[0] for name in reference.activations(self.tokens)}
        known = isinstance(reference, Observed)
        owners = reference.owners if known else owners_by_name(modules, self.job.plan)
        return counterparts(self.job.plan, owners, modules)

    def _modules(self, feed: Feed, source: str, *, in_rounding: bool) -> tuple[list[Layer], Observation | None]:
        """A comparison of each module in a step, after the earlier steps of its run.

        In float32 if the reference is; the second result is then the step in float32. In 16 bits if the reference is in
        16 bits, or if the difference is `in_rounding` only. In 16 bits, modules of other names are not compared:
        whether they return the same thing as ours is not known.
        """
        evidence, dtype = self.evidence, self.job.graph.dtype
        low = evidence.rounds and (in_rounding or not evidence.is_exact)
        reference = self.rounded() if low and self.rounded else self.reference
        names = {} if low else self._names
        given = renamed(reference.activations(self.tokens), names, INPUT)
        rows = {name: array[feed.first : feed.end] for name, array in given.items() if len(array) == len(self.tokens)}
        exact = self._observed(evidence.graph, feed, rows)
        name = next((name for name in exact.odd if name not in names), None)
        if name is not None and isinstance(self.reference, Saved):
            theirs = self.reference.arrays[name].shape
            raise mismatched(source, name, theirs, (theirs[0], *exact.odd[name][1:]))
        if not low:
            return list(compared(exact.seen, rows, names)), exact
        rounded = self._observed(evidence.rounding_graph, feed, rows)
        return list(compared_rounded(rounded.seen, exact.seen, rows, dtype, proven=evidence.is_exact)), None

    def _observed(self, graph: Eager, feed: Feed, rows: dict[str, np.ndarray]) -> Observation:
        for earlier in self.feeds:
            if earlier.run == feed.run and earlier.end <= feed.first:
                graph(earlier.step, decode=earlier.decode)
        logits = self.evidence.logits
        logits = None if logits is None else logits[feed.first : feed.end]
        return Observation(graph, feed.step, rows, decode=feed.decode, logits=logits)

    def _changed_weights(self) -> list[Diagnostic]:
        path = self.session.folder / WEIGHTS
        stored = {name: mapped(path, info) for name, info in read_header(path).items()}
        wanted = {name: array for name, array in self._weights().items() if name in stored}
        return list(weights_changed(stored, wanted, self.job.checkpoint.source))

    @cached_property
    def _compiled(self) -> Job:
        """The job with the options of the compile; its weights may be packed."""
        return as_compiled(self.job, self.session.manifest)

    def _weights(self) -> dict[str, np.ndarray]:
        tables = {name: leaf.table(self.session.max_seq_len) for name, leaf in self._compiled.graph.leaves(Const)}
        physical = selection_of(self.session.manifest).laid_out(self._compiled)
        return {**materialise(physical.plan, self.job.checkpoint), **tables}

    def _bisect(self, parity: Parity) -> None:
        whole = self.session.interface
        layout = layout_of(
            self._compiled.graph, self.session.max_seq_len, whole.prefill_sizes(), all_logits=whole.all_logits,
            max_batch_size=whole.max_batch_size, cache_blocks=whole.num_blocks - 1,
        )  # fmt: skip
        selection = selection_of(self.session.manifest)
        program = exported(self._compiled.graph, layout, selection)
        self.departure = Bisection(
            program=program, weights=self._weights(), executor=self.session.executor, feeds=self.feeds,
            selection=selection, device=self.session.device, dtype=coarsest(self.job), exact=self.evidence.graph,
            scaled=lambda executor: self.scales.departing(whole.entries, list(taken_by(executor, self.feeds))),
            suspects=[entry for entry, found in self.scaled.items() if found.scale.excess > 1],
        ).run()  # fmt: skip
        self.session.reset()
        if self.departure and self.departure.finding:
            parity.calls = {call.name: call.worst for call in self.departure.calls}
            parity.op = self.departure.found.op if self.departure.found else None
            parity.findings.append(self.departure.finding)

    def save(self, place: Path) -> list[Path]:
        """Writes activations and returns the paths of the files.

        If `place` ends in `.safetensors`, those of the reference. Otherwise a folder: the reference's, bringup's, and
        the tensors of the wrong operation if one was found; all files or none.
        """
        versions = {"model": self.job.graph.config.family, "bringup": __version__}
        computed = {"dtype": self.reference.dtype or self.job.graph.dtype, **versions}
        job = exact(self.job) if self.evidence.is_exact else self.job
        graph = Eager(job, self.session.max_seq_len)
        step = sequence_step(self.tokens, 0, len(self.tokens), self.session.max_seq_len)
        theirs = self.reference.activations(self.tokens)
        odd = Observation(graph, step, theirs).odd  # equal names with another meaning, such as the scores of a router
        theirs = {name: array for name, array in theirs.items() if name.partition(INPUT)[0] not in odd}
        if self.evidence.logits is not None:
            theirs[LOGITS] = self.evidence.logits
        by = {"reference": self.reference.name, **computed}
        if place.suffix == FILE:
            return [save_activations(place, theirs, self.tokens, **by)]
        ours = record(graph.module, lambda: graph(step))
        files = {
            "reference": (theirs, by),
            "ours": (ours, {"reference": "bringup, run by torch", **computed}),
        }
        if self.departure and self.departure.found:
            found = self.departure.found
            tensors = {f"input:{name}": array for name, array in found.inputs.items()}
            tensors |= {"torch": found.ours, "compiled": found.compiled}
            where = {"op": found.op.target, "call": found.op.call, "entry": found.op.entry}
            files["op"] = (tensors, {"dtype": self.job.graph.dtype, **where, **versions})
        with new_files(place) as folder:
            for name, (arrays, words) in files.items():
                save_activations(folder / f"{name}.safetensors", arrays, self.tokens, **words)
        return [place / f"{name}.safetensors" for name in files]


def _unexplained(parity: Parity, departing: Feed, scaled: Scaled | None, *, bisected: bool) -> Diagnostic:
    """BU702: every module agrees with the reference, but the logits do not."""
    count = len(parity.modules)
    if bisected:
        message = f"all {count} modules agree with {parity.reference}, and the program run by torch with "
        message, help = (
            f"{message}`{parity.target}`; the logits of `{departing.entry}` do not",
            "export is at fault: it traced another program",
        )
    else:
        message = f"all {count} modules agree with {parity.reference} when run by torch in `{departing.entry}`, "
        message += f"the compiled program for `{parity.target}` does not"
        help = "the lowering is at fault; --bisect names the operation, `--target torch` runs without it"
    if scaled:
        message += f": {scaled.text}"
    return Diagnostic(code="BU702", message=message, help=help)
