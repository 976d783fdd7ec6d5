# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false, reportIndexIssue=false
"""Program -> MLIR text in the torch dialect: a private function for each stage, a public one for each entry.

Weights are `util.global`s initialised from named parameters of scope "model". States are arguments and results of
stages and entries: (states..., Step, inputs...) -> (outputs..., states...); slots of LoRAs, which no step changes, are
arguments only. IREE inlines the stages, updates each state in place, returns the same buffers, and generates code for
equal dispatches once. Its other form, mutable arguments (`torch.overwrite.tensor.contents`), copies every complete
state in every step: GPT-2 small then takes 50 ms to decode instead of 15.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from bringup.compile.program.program import Call, Entry, Function, Interface, TensorSpec
from bringup.graphs.core.step import step_shapes

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from bringup.compile.program.functional import Decompositions

SCOPE = "model"

_ELEMENT = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int64": "si64",
    "int32": "si32",
    "int16": "si16",
    "int8": "si8",
    "uint8": "ui8",
    "bool": "i1",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
}


def _vtensor(spec: TensorSpec) -> str:
    return f"!torch.vtensor<[{','.join(map(str, spec.shape))}],{_ELEMENT[spec.dtype]}>"


def _builtin(spec: TensorSpec) -> str:
    element = re.sub(r"^[su]i", "i", _ELEMENT[spec.dtype])
    return f"tensor<{''.join(f'{size}x' for size in spec.shape)}{element}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageText:
    """A stage as MLIR: its function, the types of its results, and the updated states, which are the first results."""

    text: str
    results: tuple[str, ...]
    updated: tuple[str, ...]


def encode(function: Function, exported: ExportedProgram) -> bytes:
    """A traced stage as bytes, for `decode`."""
    return json.dumps(asdict(stage_text(function, exported))).encode()


def decode(data: bytes) -> StageText:
    words = json.loads(data)
    return StageText(text=words["text"], results=tuple(words["results"]), updated=tuple(words["updated"]))


def prepare() -> None:
    """Imports torch-mlir, and reads its table of decompositions."""
    for module in ("torch_mlir.dialects.torch", "torch_mlir.extras.fx_importer"):
        import_module(module)
    _decompositions()


def stage_text(function: Function, exported: ExportedProgram) -> StageText:
    """One traced stage as a private function; `module_text` puts stages together."""
    from torch_mlir import ir
    from torch_mlir.dialects import torch as torch_dialect
    from torch_mlir.extras.fx_importer import FxImporter

    from bringup.compile.program.functional import functional

    context = ir.Context()
    torch_dialect.register_dialect(context)
    importer = FxImporter(context=context)
    pure = functional(exported, _decompositions())
    op = importer.import_program(pure, func_name=function.name, func_visibility="private")  # pyright: ignore[reportArgumentType]
    text = str(importer.module_op).removeprefix("module {\n").rstrip().removesuffix("}")
    first = len(function.weights)
    updated = tuple(function.states[place - first] for place in pure.updated)
    assert set(updated) == set(function.updates), f"{function.name}: updates {updated}, expected {function.updates}"
    return StageText(text=text, results=tuple(str(t) for t in op.type.results), updated=updated)


@cache
def _decompositions() -> Decompositions:
    """Operations that torch-mlir has no lowering for are decomposed."""
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    from bringup.compile.program.functional import Decompositions

    return Decompositions(get_decomposition_table())


class _EntryText:
    """Lines of one public function."""

    def __init__(self, interface: Interface, entry: Entry, stages: Mapping[str, StageText]) -> None:
        self.interface, self.entry, self.stages = interface, entry, stages
        self.weights = {spec.name: spec for spec in interface.weights}
        self.states = {spec.name: (f"%s{i}", _vtensor(spec)) for i, spec in enumerate(interface.states)}
        self.value: dict[str, tuple[str, str]] = {}
        self.lines: list[str] = []
        self.count = 0

    def step(self) -> list[tuple[str, str]]:
        shapes = step_shapes(self.entry.num_tokens, self.entry.num_sequences, 1)
        sizes = {name: ",".join(map(str, shape)) for name, shape in shapes.items()}
        if self.interface.max_blocks > 1:
            sizes["block_table"] = f"{self.entry.num_sequences},?"
        return [(f"%{name}", f"!torch.vtensor<[{size}],si64>") for name, size in sizes.items()]

    def emit(self, result: str, text: str) -> None:
        self.lines.append(f"    {result} = {text}")

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def weight(self, name: str) -> tuple[str, str]:
        if name not in self.value:
            raw, value, spec = self.fresh(), self.fresh(), self.weights[name]
            self.emit(raw, f'util.global.load @"{name}" : {_builtin(spec)}')
            self.emit(value, f"torch_c.from_builtin_tensor {raw} : {_builtin(spec)} -> {_vtensor(spec)}")
            self.value[name] = (value, _vtensor(spec))
        return self.value[name]

    def state(self, name: str) -> tuple[str, str]:
        return self.value.get(name, self.states[name])

    def call(self, call: Call, values: list[tuple[str, str]]) -> list[tuple[str, str]]:
        function, stage = self.interface.function(call.function), self.stages[call.function]
        args = [
            *map(self.weight, call.bound(function.weights)),
            *map(self.state, call.bound(function.states)),
            *(values[i] for i in call.inputs),
            *self.step(),
        ]
        names = [self.fresh() for _ in stage.results]
        self.emit(
            ", ".join(names),
            f'func.call @"{function.name}"({", ".join(v for v, _ in args)}) : '
            f"({', '.join(t for _, t in args)}) -> ({', '.join(stage.results)})",
        )
        out = list(zip(names, stage.results, strict=True))
        changed = call.bound(stage.updated)
        self.value.update(zip(changed, out, strict=False))
        return out[len(changed) :]

    def text(self) -> Iterator[str]:
        inputs = [(f"%i{index}", _vtensor(spec)) for index, spec in enumerate(self.entry.inputs)]
        values = list(inputs)
        for call in self.entry.calls:
            values += self.call(call, values)
        args = ", ".join(f"{name}: {kind}" for name, kind in [*self.states.values(), *self.step(), *inputs])
        outputs = (values[index] for index in self.entry.outputs.values())
        results = [*outputs, *(self.state(spec.name) for spec in self.interface.sequence_states)]
        kinds = ", ".join(kind for _, kind in results)
        attributes = "attributes {torch.assume_strict_symbolic_shapes}"
        yield f"  func.func @{self.entry.name}({args}) -> ({kinds}) {attributes} {{"
        yield from self.lines
        yield f"    return {', '.join(value for value, _ in results)} : {kinds}"
        yield "  }"


def module_text(interface: Interface, stages: Mapping[str, StageText]) -> str:
    """The module of stages that were converted one by one."""
    used = {
        name
        for entry in interface.entries
        for call in entry.calls
        for name in call.bound(interface.function(call.function).weights)
    }
    lines = ["module @model {"]
    lines += [
        f'  util.global private @"{s.name}" = #flow.parameter.named<"{SCOPE}"::"{s.name}"> : {_builtin(s)}'
        for s in interface.weights
        if s.name in used
    ]
    lines += [stage.text for stage in stages.values()]
    for entry in interface.entries:
        lines += _EntryText(interface, entry, stages).text()
    return "\n".join([*lines, "}", ""])
