"""Both executors against eager torch on the toy models; equal layers are lowered once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import iree.runtime
import numpy as np
import pytest
import torch

from bringup.compile.cache.store import default_store
from bringup.compile.program.export_options import Layout
from bringup.compile.program.program import Executor, Interface, Program
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.program.torch_arrays import to_numpy
from bringup.compile.program.trace import Tracer, program_of
from bringup.compile.program.trace_cached import EncodedProgram
from bringup.compile.targets.iree_compiler import IreeOptions, LoweringError, compile_mlir
from bringup.compile.targets.iree_executor import IreeExecutor
from bringup.compile.targets.iree_memory import export_memory, free_released
from bringup.compile.targets.iree_mlir import module_text, stage_text
from bringup.compile.targets.llvm import LLVM
from bringup.compile.targets.module_store import ModuleStore
from bringup.compile.targets.torch_executor import TorchExecutor, encode, load_functions
from bringup.diagnostics import BringupError
from bringup.graphs.core.step import Step
from tests import PATIENCE
from tests.compile.toy import ToyAutocast, ToyGPT, ToyLlama, seeded

MAX_SEQ, BUCKET = 256, 64
# Largest |difference| over largest |reference|: float32 differs by the order of summation only.
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "gpt": (ToyGPT, (0, 0)),
    "autocast": (ToyAutocast, (0, 0)),
    "llama": (ToyLlama, (0, 0)),
    "window": (lambda: ToyLlama(layers=4, window=24), (0, 1, 0, 1)),
}


@dataclass(frozen=True)
class Built:
    module: torch.nn.Module
    program: Program
    weights: dict[str, np.ndarray]
    dtype: torch.dtype


def state_names(module: torch.nn.Module) -> list[str]:
    return [name for name, _ in module.named_buffers() if name in module.state_dict()]


def layout_of(module: torch.nn.Module, kinds: Sequence[int], all_logits: bool = False) -> Layout:
    paths = {id(part): path for path, part in module.named_modules()}
    layers = [paths[id(layer)] for layer in module.layers]
    return Layout(layers=layers, kinds=kinds, buckets=(BUCKET,), context=MAX_SEQ, all_logits=all_logits)


def export(module: torch.nn.Module, layout: Layout, states: Sequence[str]) -> Program:
    """The program of a module with `prologue`, `layers` and `epilogue`, whose states are paged."""
    return program_of(Tracer(module, states=dict.fromkeys(states, "paged"), max_blocks=layout.max_blocks), layout)


@cache
def build(model: str, dtype: torch.dtype, all_logits: bool) -> Built:
    make, kinds = MODELS[model]
    module = seeded(make, dtype)
    states = state_names(module)
    program = export(module.to("meta"), layout_of(module, kinds, all_logits), states)
    module = seeded(make, dtype)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return Built(module, program, {name: to_numpy(t) for name, t in tensors.items() if name not in states}, dtype)


def to_mlir(program: Program) -> str:
    interface = program.interface
    return module_text(interface, {f.name: stage_text(f, program.exported[f.name]) for f in interface.functions})


@cache
def vmfb(model: str, dtype: torch.dtype, all_logits: bool) -> bytes:
    return compile_mlir(to_mlir(build(model, dtype, all_logits).program))


def executor(kind: str, model: str, dtype: torch.dtype, all_logits: bool = False) -> Executor:
    built = build(model, dtype, all_logits)
    if kind == "torch":
        return TorchExecutor(built.program.exported, built.program.interface, built.weights)
    if kind == "llvm":
        return llvm_executor(built.program, built.weights)
    return IreeExecutor(vmfb(model, dtype, all_logits), built.program.interface, built.weights)


def llvm_executor(program: Program, weights: dict[str, np.ndarray]) -> Executor:
    """Compiled and loaded without a cache or a bundle."""
    code = {f.name: LLVM.encode(f, program.exported[f.name]) for f in program.interface.functions}
    with TemporaryDirectory() as folder:
        encoded = EncodedProgram(interface=program.interface, code=code, num_cached=0)
        options = {name: option.default for name, option in LLVM.options.items()}
        with LLVM.lower(encoded, Path(folder), options, ModuleStore(default_store(), lambda: None), None) as finish:
            finish()
        return LLVM.load(Path(folder), program.interface, weights, None)


def make_step(tokens: np.ndarray, first: int, size: int) -> dict[str, np.ndarray]:
    """One sequence: tokens from `first` on, padded to `size`; padding goes to one slot past the context."""
    return sequence_step(tokens.tolist(), first, size, MAX_SEQ)


def eager(module: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    """Logits [T, V] of an unpadded prompt in one go: neither bucket nor chunk nor cache reuse."""
    step = Step(*map(torch.from_numpy, make_step(tokens, 0, len(tokens)).values()))
    x, *shared = module.prologue(step)
    for layer in module.layers:
        x = layer(x, *shared, step)
    return module.epilogue(x).float().numpy()


def assert_close(given: np.ndarray, expected: np.ndarray, dtype: torch.dtype) -> None:
    difference = np.abs(given.astype(np.float32) - expected).max()
    assert difference <= TOLERANCE[dtype] * np.abs(expected).max()
    top = np.sort(expected)[-2:]
    if top[1] - top[0] > 2 * difference:
        assert given.argmax() == expected.argmax()


CASES: list[Any] = [("torch", model, torch.float32) for model in MODELS if model != "llama"]  # "window" is one too
CASES += [("iree", "gpt", torch.float32)]
CASES += [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
        ("torch", "llama", torch.float32),
        ("iree", "autocast", torch.float32),
        ("iree", "llama", torch.float32),
        ("iree", "llama", torch.bfloat16),
        ("iree", "window", torch.float32),
        ("torch", "llama", torch.bfloat16),
        ("iree", "llama", torch.float16),
    )
]


@pytest.mark.parametrize(("kind", "model", "dtype"), CASES)
def test_padded_chunks_then_decode(kind: str, model: str, dtype: torch.dtype) -> None:
    """A prompt of 64 + 50 tokens (two chunks, the second padded), then 30 decode steps."""
    built, run = build(model, dtype, False), executor(kind, model, dtype)
    tokens = np.random.default_rng(1).integers(0, 300, 144)
    expected = eager(built.module, tokens)
    for _ in range(2):
        first = run.step(f"prefill_{BUCKET}", make_step(tokens[:64], 0, BUCKET))["logits"]
        assert first.shape == (1, 300)
        assert_close(first[0], expected[63], dtype)
        second = run.step(f"prefill_{BUCKET}", make_step(tokens[64:114], 64, BUCKET))["logits"]
        assert_close(second[0], expected[113], dtype)
        for at in range(114, 144):
            decoded = run.step("decode", make_step(tokens[at : at + 1], at, 1))["logits"]
            assert_close(decoded[0], expected[at], dtype)
        run.reset()


@pytest.mark.parametrize("kind", ["torch", pytest.param("iree", marks=pytest.mark.slow)])
def test_short_prompt_and_all_logits(kind: str) -> None:
    built, run = build("gpt", torch.float32, True), executor(kind, "gpt", torch.float32, True)
    tokens = np.arange(9)
    expected = eager(built.module, tokens)
    logits = run.step(f"prefill_{BUCKET}", make_step(tokens, 0, BUCKET))["logits"]
    assert logits.shape == (BUCKET, 300)
    for row in range(9):
        assert_close(logits[row], expected[row], torch.float32)


def test_states_are_updated_in_place() -> None:
    run = executor("iree", "gpt", torch.float32)
    assert isinstance(run, IreeExecutor)
    before = [view.map().asarray([1], np.dtype(np.uint8)).ctypes.data for view in run._states.values()]
    run.step("decode", make_step(np.array([1]), 0, 1))
    assert [view.map().asarray([1], np.dtype(np.uint8)).ctypes.data for view in run._states.values()] == before


@pytest.mark.slow
def test_equal_layers_are_lowered_once() -> None:
    counts = []
    for layers in (2, 6):
        module = seeded(lambda n=layers: ToyGPT(layers=n), torch.float32)
        program = export(module, layout_of(module, [0] * layers), state_names(module))
        assert len(program.interface.functions) == 6
        flow = compile_mlir(to_mlir(program), IreeOptions(extra_flags=("--compile-to=flow",))).decode()
        counts.append(len(re.findall(r"^\s*flow\.executable ", flow, re.MULTILINE)))
    assert counts[0] == counts[1] > 0


def test_weights_are_named_not_inlined() -> None:
    text = to_mlir(build("llama", torch.float32, False).program)
    assert '#flow.parameter.named<"model"::"blocks.1.down.weight">' in text
    assert '#flow.parameter.named<"model"::"cos">' in text
    assert "dense_resource" not in text


def test_interface_survives_json_and_functions_survive_saving(tmp_path: Path) -> None:
    built = build("llama", torch.float32, False)
    interface = Interface.from_json(built.program.interface.to_json())
    assert interface == built.program.interface
    for function in interface.functions:
        (tmp_path / f"{function.name}.pt2").write_bytes(encode(function, built.program.exported[function.name]))
    run = TorchExecutor(load_functions(tmp_path, interface), interface, built.weights)
    tokens = np.arange(7)
    logits = run.step(f"prefill_{BUCKET}", make_step(tokens, 0, BUCKET))["logits"]
    assert_close(logits[0], eager(built.module, tokens)[6], torch.float32)


def test_wrong_weights_are_all_named() -> None:
    built = build("gpt", torch.float32, False)
    weights = {**built.weights, "h.0.fc.weight": built.weights["h.0.fc.weight"].T}
    del weights["ln_f.bias"]
    with pytest.raises(BringupError, match=r"(?s)`h\.0\.fc\.weight` as float32\[256, 64\].*`ln_f\.bias`.* lack"):
        IreeExecutor(vmfb("gpt", torch.float32, False), built.program.interface, weights)


@pytest.mark.parametrize("closed", [True, False])
def test_iree_reads_arrays_until_it_releases_them(closed: bool) -> None:
    """Weights are freed once an executor is closed, or nothing refers to it."""
    built = build("gpt", torch.float32, False)
    weights = {name: array.copy() for name, array in built.weights.items()}
    arrays = [weakref.ref(array) for array in weights.values()]
    steps = make_step(np.arange(7), 0, BUCKET)
    expected = executor("iree", "gpt", torch.float32).step(f"prefill_{BUCKET}", steps)["logits"]
    for _ in range(10):
        opened = IreeExecutor(vmfb("gpt", torch.float32, False), built.program.interface, weights)
        assert np.array_equal(opened.step(f"prefill_{BUCKET}", steps)["logits"], expected)
    weights.clear()
    assert all(array() is not None for array in arrays)
    if closed:
        opened.close()
    else:
        del opened
    end = time.monotonic() + PATIENCE
    while any(array() is not None for array in arrays) and time.monotonic() < end:
        time.sleep(0.01)
        free_released()
    assert [array for array in arrays if array() is not None] == []


def test_a_released_view_is_never_freed() -> None:
    """Two references are IREE's to take away without the lock; each may undo one of Python's."""
    array = np.arange(8, dtype=np.uint8)
    view = export_memory(array)
    handle = iree.runtime.FileHandle.wrap_memory(view)
    free_released()
    assert bytes(view) == bytes(range(8))
    del handle
    free_released()
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    assert sys.getrefcount(view) - 2 >= 4  # less this frame's and the argument's


def test_compiler_errors_are_one_line() -> None:
    with pytest.raises(LoweringError, match=r"^[^\n]+$") as caught:
        compile_mlir("module { func.func @f( }")
    assert caught.value.log


def test_running_iree_needs_no_torch() -> None:
    code = "import sys, bringup.compile.targets.iree_executor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
