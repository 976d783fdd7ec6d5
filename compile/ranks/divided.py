# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A graph on all ranks of a division, run by torch on this machine: a thread for each rank of a stage.

Stages run one after the other on one machine as on several, so the ranks with the same place in each stage are one
thread, which has the parameters of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import FFN, HEADS, Stages, rank_plan
from bringup.adapters.apply.shard import share
from bringup.adapters.planning.plan import Plan
from bringup.compile.bisect.eager import Eager, set_buffer
from bringup.compile.job import Job
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.ranks.communication import Communication
from bringup.compile.ranks.exchange import Exchange, UnmatchedError
from bringup.diagnostics import BringupError, fail
from bringup.graphs.core.axes import Axis
from bringup.graphs.core.module import Const
from bringup.graphs.core.signature import Signature

# What a forward raises for tensors of other sizes than it expects.
OF_FORWARDS = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError, BringupError)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Logits of each rank, float32 [T, V], and the outputs of one rank's modules by name, in the order in which they
    finish: [T, …]."""

    logits: Sequence[np.ndarray]
    modules: Mapping[str, np.ndarray]


class DividedGraph:
    """The job's graph on the ranks of a division, or undivided if `parallel` is one rank."""

    def __init__(self, job: Job, parallel: Parallel, context: int) -> None:
        """Raises BU045, BU130 and BU138 for a division that does not fit, as `rank_plan` does, and BU712 for a matrix
        that ranks divide and whose exchange is not known."""
        self.context, self._inputs, stages = context, job.graph.inputs, Stages.of(job.graph)
        self._exchange = Exchange(parallel.stage_ranks)
        self._ranks: list[Eager] = []
        self._communications: list[Communication] = []
        for number in range(parallel.stage_ranks):
            plan = _of_all_stages(job.plan, parallel, number, stages)
            eager = Eager(job, context, plan=plan)
            rank = parallel.rank(number)
            _clip_buffers(eager, job, parallel, rank.tp)
            communication = Communication(self._exchange, parallel, rank, job.plan, plan, stages)
            communication.register(eager.module)
            self._communications.append(communication)
            self._ranks.append(eager)

    def run(self, tokens: Sequence[int], observed: int = 0) -> Outputs:
        """One step with all tokens, in which further inputs have random rows; modules are those of rank `observed`.

        Raises BU711 if the forward fails on a rank of several, and BU712 as the constructor does.
        """
        step = sequence_step(list(tokens), 0, len(tokens), self.context)
        random = np.random.default_rng(0)
        step |= {name: random.standard_normal((len(tokens), size)) for name, size in self._inputs.items()}
        outputs: dict[str, np.ndarray] = {}

        def on_rank(number: int) -> Tensor:
            eager, running = self._ranks[number], list[str]()
            hooks = _track(eager.module, running)
            if number == observed:
                hooks += _record(eager.module, len(tokens), outputs)
            try:
                return eager(step)
            except OF_FORWARDS as error:
                if len(self._ranks) == 1:
                    raise  # the graph itself is wrong
                raise _failed(number, running[-1] if running else "", error) from error
            finally:
                for hook in hooks:
                    hook.remove()

        try:
            logits = self._exchange.run(on_rank)
        except UnmatchedError as error:
            help = "a forward must take the same way on every rank: a rank has other values of divided tensors"
            raise fail("BU711", f"the ranks do not make the same exchanges: {error}", help=help) from error
        for communication in self._communications:
            communication.check_exchanges()
        return Outputs([each.float().numpy() for each in logits], outputs)


def _of_all_stages(plan: Plan, parallel: Parallel, number: int, stages: Stages) -> Plan:
    """The parameters of the ranks with one place in each stage."""
    parts = [rank_plan(plan, parallel, stage * parallel.stage_ranks + number, stages) for stage in range(parallel.pp)]
    entries = {name: entry for part in parts for name, entry in part.entries.items()}
    return replace(
        plan, entries=entries, signature=Signature({name: entry.declared for name, entry in entries.items()})
    )


def _clip_buffers(eager: Eager, job: Job, parallel: Parallel, tp: int) -> None:
    """Clips states and tables to the heads of a rank."""
    for name, leaf in [*job.graph.states().items(), *job.graph.leaves(Const)]:
        for dim, axis in enumerate(leaf.axes):
            parts = axis.parts if axis.sum else (axis,)
            if any(_divided(part) for part in parts):
                indices = _indices(name, parts, tp, parallel.tp)
                set_buffer(eager.module, name, eager.module.get_buffer(name).index_select(dim, torch.tensor(indices)))
    for name, other in job.graph.borrowed().items():
        set_buffer(eager.module, name, eager.module.get_buffer(other))


def _divided(axis: Axis) -> Axis | None:
    """The factor that ranks divide: a product is divided by its outermost one."""
    first = next(axis.factors(set()))
    return first if first.name in (*HEADS, FFN) else None


def _indices(name: str, parts: Sequence[Axis], tp: int, ranks: int) -> list[int]:
    """A rank's indices of concatenated axes of a state."""
    found: list[int] = []
    at = 0
    for part in parts:
        start, stop, each = 0, 1, part.size
        if first := _divided(part):
            start, stop = share(name, first.name, first.size, tp, ranks)
            each = part.size // first.size
        found += range(at + start * each, at + stop * each)
        at += part.size
    return found


def _track(module: Any, running: list[str]) -> list[Any]:
    """Hooks that hold the names of the modules whose forward runs, outermost first, in `running`."""

    def hooks_of(name: str, part: Any) -> tuple[Any, Any]:
        def begin(*_: Any) -> None:
            running.append(name)

        def end(*_: Any) -> None:
            running.pop()

        return part.register_forward_pre_hook(begin), part.register_forward_hook(end)

    return [hook for name, part in module.named_modules() for hook in hooks_of(name, part)]


def _record(module: Any, count: int, outputs: dict[str, np.ndarray]) -> list[Any]:
    """Hooks that copy the output of each module that has `count` rows, or the first of several outputs."""

    def hook_of(name: str, part: Any) -> Any:
        def end(_module: Any, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor) and first.is_floating_point() and first.ndim > 1 and len(first) == count:
                outputs[name] = first.float().numpy().copy()

        return part.register_forward_hook(end)

    return [hook_of(name, part) for name, part in module.named_modules() if name]


def _failed(number: int, module: str, error: Exception) -> BringupError:
    text = error.findings[0].message if isinstance(error, BringupError) else f"{type(error).__name__}: {error}"
    message = f"the forward of `{module or 'the graph'}` fails on rank {number}: {text.partition(chr(10))[0]}"
    help = "take sizes from tensors, as in `x.unflatten(1, (-1, self.head_dim))`: a rank has fewer heads and channels"
    return fail("BU711", message, help=help)
