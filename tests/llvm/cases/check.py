"""Sets of forms: their kernels are compiled together, run on many draws of values, and compared with float64.

A case is an operation with its dtypes, sizes and options, values for all its arguments, an instruction set, and a
number of threads. A set compiles the kernels of some forms for one instruction set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from bringup.compile.llvm.module import Loaded, compiled, texts_of
from bringup.compile.llvm.select.call import SHARED, Call, Kernel
from bringup.compile.llvm.select.registry import calls_of
from tests.llvm.cases import of_models, of_steps, of_torch
from tests.llvm.cases.drawn import DISTRIBUTIONS, Draw, Form, Random, Wanted
from tests.llvm.native import MACHINES, Memory, run_call

FORMS: Mapping[Callable[[Random], Form], float] = {
    **{of_torch.element: 0.08, of_torch.pair: 0.08, of_torch.whole_pair: 0.04, of_torch.chosen: 0.05},
    **{of_torch.reduction: 0.06, of_torch.ordered: 0.04, of_torch.placed: 0.06, of_torch.product: 0.04},
    **{of_models.linear: 0.12, of_models.bmm: 0.05, of_models.norm: 0.08, of_models.softmax: 0.05},
    **{of_models.rope: 0.05, of_models.routing: 0.05, of_models.write_cache: 0.03, of_models.experts: 0.04},
    **{of_steps.attention: 0.04, of_steps.quantised: 0.06, of_steps.lora: 0.03, of_steps.keys: 0.02},
    of_steps.scores: 0.01,
}
SHAPED = ("elements", "fold", "scan", "sort", "put")  # kernels whose code has sizes: of no use for other forms
THREADS = (1, 2, 5, 64)
HALF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half a step, relative to the number
SMALLEST = {"float16": 3.1e-8, "bfloat16": 1.2e-38, "float32": 1.2e-38, "float64": 1e-307}
AT_ONCE, DRAWS = 40, 16  # forms of a set, and draws of numbers of a form


class Different(AssertionError):
    """A kernel gives something else than float64 does."""


@dataclass
class Counts:
    """Of sets: cases by operation, the largest difference as part of its bound, kernels, and what is beyond a bound."""

    cases: Counter[str] = field(default_factory=Counter[str])
    worst: dict[str, float] = field(default_factory=dict[str, float])
    kernels: int = 0
    wrong: list[str] = field(default_factory=list[str])

    def add(self, name: str, part: float) -> None:
        self.cases[name] += 1
        self.worst[name] = max(self.worst.get(name, 0.0), part)


class Kernels:
    """Compiled kernels of a machine; those that serve any size are kept."""

    def __init__(self, machine: str) -> None:
        self.machine, self.compiled = MACHINES[machine], 0
        self._of_any_size: dict[Kernel, Loaded] = {}
        self._own: dict[Kernel, Loaded] = {}

    def begin(self, kernels: Iterable[Kernel]) -> None:
        """A new set: kernels that no set had are compiled, as one module."""
        self._own = {}
        self._compile(kernels)

    def of(self, kernel: Kernel) -> Loaded:
        found = self._own.get(kernel) or self._of_any_size.get(kernel)
        if found is None:
            self._compile([kernel])
            return self.of(kernel)
        return found

    def _compile(self, kernels: Iterable[Kernel]) -> None:
        missing = {kernel for kernel in kernels if kernel not in self._of_any_size and kernel not in self._own}
        for shaped, found in ((True, self._own), (False, self._of_any_size)):
            if part := [kernel for kernel in missing if (kernel.stem in SHAPED) == shaped]:
                texts = zip(texts_of(part, self.machine), (False, True), strict=True)
                loaded = Loaded([compiled(text, self.machine, vectorise=each) for text, each in texts], self.machine)
                found.update(dict.fromkeys(part, loaded))
        self.compiled += len(missing)


_kernels: dict[str, Kernels] = {}


def check_set(seed: int, counts: Counts) -> None:
    """The cases of a seed. What differs is listed among what is wrong; other errors name the form."""
    random, chances = np.random.default_rng((seed, 14)), np.array([*FORMS.values()])
    makers = random.choice(len(FORMS), AT_ONCE, p=chances / chances.sum())
    check_forms(seed, counts, [list(FORMS)[n] for n in makers])


def check_forms(seed: int, counts: Counts, makers: Sequence[Callable[[Random], Form]], draws: int = DRAWS) -> None:
    """As `check_set`, of a form by each maker."""
    random = np.random.default_rng((seed, 15))
    machine = str(random.choice(list(MACHINES)))
    kernels = _kernels.setdefault(machine, Kernels(machine))
    forms = [make(random) for make in makers]
    drawn = [(form, [form.draw(random, str(random.choice(DISTRIBUTIONS))) for _ in range(draws)]) for form in forms]
    calls = {id(draw): _calls(form.name, draw, kernels) for form, each in drawn for draw in each}
    before = kernels.compiled
    kernels.begin(call.kernel for listed in calls.values() for call in listed)
    counts.kernels += kernels.compiled - before
    for form, each in drawn:
        for number, draw in enumerate(each):
            threads = int(random.choice(THREADS))
            try:
                counts.add(form.name, _check(draw, calls[id(draw)], kernels, threads, random))
            except AssertionError as error:
                place = f"{form.name}, set {seed}, draw {number}, {machine}, {threads} threads"
                counts.wrong.append(f"{place}: {error}".replace("\n", " ")[:600])


def _calls(name: str, draw: Draw, kernels: Kernels) -> Sequence[Call]:
    found: list[Call] = []
    for group in draw.graph.groups:
        calls = calls_of(draw.graph, group, kernels.machine)
        if calls is None:
            raise LookupError(f"no kernel takes {name}: {group.nodes[0]}")
        found += calls
    return found


def _check(draw: Draw, calls: Sequence[Call], kernels: Kernels, threads: int, random: Random) -> float:
    shared = max((call.shared for call in calls), default=0)
    memory = Memory(draw.arrays | {SHARED: np.full(shared, 0xFF, np.uint8)})  # NaN
    for call in calls:
        run_call(call, kernels.of(call.kernel), memory, threads, backwards=bool(random.random() < 0.5))
    memory.check()
    found = {name: memory.read(name) for name in draw.wanted}
    return max(
        distance(found[name] if each.rows is None else found[name][: each.rows], each)
        for name, each in draw.wanted.items()
    )


def distance(found: np.ndarray, wanted: Wanted) -> float:
    """The largest difference, as part of the bound. Raises Different beyond that."""
    with np.errstate(all="ignore"):
        ours, theirs = found.astype(np.float64), _rounded(wanted.numbers, found.dtype)
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        if wanted.steps == 0.0 or "float" not in found.dtype.name or same.all():
            off = np.where(same, 0.0, np.inf)
        else:
            dtype = found.dtype.name
            steps = wanted.steps * (2.0**-52 if dtype == "float64" else 2.0**-23)
            bound = wanted.size * steps + np.abs(wanted.numbers) * HALF.get(dtype, 0.0) + SMALLEST[dtype]
            off = np.abs(ours - wanted.numbers) / bound
            off = np.where(np.isnan(off) | np.isinf(ours), np.inf, off)
            largest = float(ml_dtypes.finfo(found.dtype).max)
            at_end = np.abs(np.abs(wanted.numbers) / largest - 1) < 4 * HALF.get(dtype, steps)
            off = np.where(same | (at_end & (np.abs(ours) >= largest * 0.99)), 0.0, off)
    worst = float(off.max(initial=0.0))
    if not worst <= 1.0:
        raise Different(f"{ours[off > 1][:3]} for {wanted.numbers[off > 1][:3]}, {worst:.2f} of the bound")
    return worst


def _rounded(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float64 as a result of a dtype: of 16 bits through float32, as kernels compute."""
    if dtype.name in ("bfloat16", "float16"):
        numbers = numbers.astype(np.float32)
    return numbers.astype(dtype).astype(np.float64)
