"""Runs each launch of a real step with its kernels, and with torch in float64 on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.trial.steps import TrialStep
from bringup.compile.kernels.call import Pointer
from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.torch_arrays import to_tensor
from bringup.compile.schedule.graph.op_graph import DType, Node, View
from bringup.compile.schedule.reference_ops import run_node
from bringup.compile.schedule.schedule import Launch


@dataclass(frozen=True)
class Checked:
    """`error`: the largest difference of a result over its largest number."""

    entry: str
    kernels: str
    launch: str
    error: float


def checked(executor: GpuExecutor, step: TrialStep) -> Iterator[Checked]:
    """Runs an entry point launch by launch, each from what the launches before it have left on the device.

    Rows of padding are not compared.
    """
    driver, stream, entry = executor._driver, executor._stream, step.entry.name
    driver.use()
    ready = executor._opened(entry)
    executor._forget_ahead()
    ready.can_continue = False  # by the fields of an earlier step
    ready.staging.fill(step.arrays)
    ready.staging.copy_in(driver, stream)
    starts = iter(ready.starts)
    for launch, calls in executor._launches(entry):

        def read(name: str, launch: Launch = launch) -> np.ndarray:
            address = executor._value(launch, Pointer(name), entry, ready.staging)
            buffer = launch.graph.buffers[name]
            raw = driver.pinned(buffer.nbytes)
            if buffer.nbytes:
                driver.copy_out(raw, int(address), stream)
                driver.wait(stream)
            found = raw.copy().view(dtype_of(buffer.dtype)).reshape(buffer.shape)
            driver.unpin(raw)
            return found

        group = launch.group
        expected = in_float64(launch, {name: read(name) for name in group.inputs | group.updates})
        for _ in calls:
            start = next(starts)
            driver.launch(start.function, start.grid, start.arguments, stream)
        driver.wait(stream)
        results = (group.outputs & launch.graph.planned) | group.updates
        error = 0.0
        for name in results:
            found, exact = (step.real(launch.graph.buffers[name], each) for each in (read(name), expected[name]))
            chosen = _chosen(launch, name, expected)
            if chosen is not None:  # equal scores may be in any order
                found, exact = chosen(found), chosen(exact)
            error = max(error, far(found, exact))
        yield Checked(entry, " + ".join(call.kernel.stem for call in calls), group.name, error)


class StaysWide(TorchFunctionMode):
    """What is float64 is no narrower after `float()`, by which references say that they compute in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


def in_float64(launch: Launch, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All buffers of a launch after its nodes; floating-point numbers are float64 throughout."""
    buffers = launch.graph.buffers
    own = {name: to_tensor(array) for name, array in given.items()}
    own = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in own.items()}

    def tensor_of(view: View) -> torch.Tensor:
        part = own[view.buffer].as_strided(view.shape, view.strides, view.offset)
        return part if buffers[view.buffer].kind == "state" else part.contiguous()

    with torch.no_grad(), StaysWide():
        for node in launch.group.nodes:
            results = run_node(_widened(node), tensor_of)
            own.update((name, result.contiguous()) for name, result in zip(node.outputs, results, strict=True))
    return {name: tensor.double().numpy() for name, tensor in own.items()}


def _chosen(launch: Launch, name: str, expected: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray] | None:
    """Of a result that says which experts, or keys, each token has: what of it has a meaning.

    Of experts their scores; of keys those that a token sees.
    """

    def value(node: Node, argument: str) -> np.ndarray:
        view = node.argument(argument)
        assert isinstance(view, View)
        flat = torch.from_numpy(expected[view.buffer]).reshape(-1)
        return flat.as_strided(view.shape, view.strides, view.offset).numpy()

    for node in launch.group.nodes:
        if node.outputs[:1] != (name,):
            continue
        if node.short == "top_experts":
            scores = value(node, "scores_NE" if node.argument("by_NE") is None else "by_NE")
            return lambda numbers: np.take_along_axis(scores[: len(numbers)], numbers.astype(int), 1)
        if node.short == "top_keys":
            positions = value(node, "positions_N")
            return lambda mask: mask.astype(bool) & (np.arange(mask.shape[1]) <= positions[: len(mask), None])
    return None


def far(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest finite number; infinity for NaN, and for an infinity of one alone."""
    wide = found.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(wide[~finite], expected[~finite]) or not np.isfinite(wide[finite]).all():
        return float("inf")
    off = np.abs(wide[finite] - expected[finite]).max(initial=0.0)
    return float(off / max(np.abs(expected[finite]).max(initial=0.0), 1e-30))


def _widened(node: Node) -> Node:
    """The same node, without roundings to a narrower dtype."""
    arguments = tuple(
        DType("float64") if isinstance(value, DType) and "float" in value.name else value for value in node.arguments
    )
    return replace(node, arguments=arguments)
