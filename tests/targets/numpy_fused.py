"""A target of a third party: fused buffers, numpy for attention and linear layers, torch for the rest.

It imports only public names of bringup. The tests install it by an entry point.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import numpy as np
import torch
from torch.fx import Interpreter

from bringup.adapters import fused
from bringup.compile import Target, target_named
from bringup.graphs import BLOCK, FIELDS, attention, linear, operator_of

TORCH = target_named("torch")
CALLS: Counter[str] = Counter()


def numpy_linear(x, weight, bias=None):
    product = x @ weight.T
    return product if bias is None else product + bias


def numpy_attention(q_NHK, k_SGK, v_SGV, step, scale, **terms):
    """Token by token, over the rows that the block table names."""
    assert not any(terms.values()), "windows, sinks and the like are not needed here"
    tokens, heads, groups = len(q_NHK), q_NHK.shape[1], k_SGK.shape[1]
    mixed = np.zeros((tokens, heads, v_SGV.shape[2]), np.float32)
    for sequence, blocks in enumerate(step.block_table):
        for token in [sequence] if step.decode else range(step.starts[sequence], step.starts[sequence + 1]):
            seen = np.arange(step.positions[token] + 1)
            rows = blocks[seen // BLOCK] * BLOCK + seen % BLOCK
            keys, values = (np.repeat(cache[rows], heads // groups, axis=1) for cache in (k_SGK, v_SGV))
            scores = np.einsum("hk,lhk->hl", q_NHK[token], keys) * scale
            shares = np.exp(scores - scores.max(1, keepdims=True))
            mixed[token] = np.einsum("hl,lhv->hv", shares / shares.sum(1, keepdims=True), values)
    return mixed


BY_NUMPY = {"linear": (linear, numpy_linear), "attention": (attention, numpy_attention)}


class ByNumpy(Interpreter):
    """Runs a function's graph."""

    def call_function(self, target, args, kwargs):
        if getattr(target, "namespace", "") != "bringup":
            return super().call_function(target, args, kwargs)
        name = target.__name__.partition(".")[0]
        CALLS[name] += 1
        op, compute = BY_NUMPY[name]
        values = operator_of(op).values(tuple(args))
        return torch.from_numpy(compute(**{key: arrays(value) for key, value in values.items()}))


def arrays(value):
    """Tensors as numpy's arrays, those of a step among them."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    fields = {name: getattr(value, name) for name in FIELDS} if hasattr(value, "block_table") else {}
    if not fields:
        return value
    static = {"decode": value.decode, "contiguous": value.contiguous}
    return type(value)(**{name: tensor.numpy() for name, tensor in fields.items()}, **static)


class Executor:
    def __init__(self, functions, interface, weights):
        self.interface = interface
        self.functions = {function.name: function for function in interface.functions}
        self.code = {name: ByNumpy(exported.graph_module) for name, exported in functions.items()}
        self.weights = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
        self.reset()

    def step(self, entry, step):
        wanted = self.interface.entry(entry)
        fields = [torch.from_numpy(np.ascontiguousarray(step[name])) for name in FIELDS]
        values = [torch.from_numpy(step[spec.name]) for spec in wanted.inputs]
        for call in wanted.calls:
            function = self.functions[call.function]
            weights = [self.weights[call.full_name(name)] for name in function.weights]
            states = [self.held[call.full_name(name)] for name in function.states]
            inputs = [values[index] for index in call.inputs]
            values += self.code[function.name].run(*weights, *states, *inputs, *fields, enable_io_processing=False)
        return {name: values[index].numpy() for name, index in wanted.outputs.items()}

    def reset(self):
        self.held = {spec.name: torch.zeros(spec.shape) for spec in self.interface.states}

    def states(self):
        return {name: state.numpy().copy() for name, state in self.held.items()}

    def set_states(self, arrays):
        for name, array in arrays.items():
            self.held[name].copy_(torch.from_numpy(array))


class NumpyFused(Target):
    name = "numpy-fused"
    summary = "fused buffers, numpy for attention and linear layers"
    requires = ("torch",)
    opaque = frozenset(BY_NUMPY)

    def layout(self, graph):
        return fused()

    def encode(self, function, exported):
        return TORCH.encode(function, exported)

    @contextmanager
    def lower(self, program, folder, options, store, dump_dir):
        with TORCH.lower(program, folder, options, store, dump_dir) as finish:
            yield finish

    def load(self, folder, interface, weights, device):
        functions = {each.name: self.function(folder / "programs" / f"{each.name}.pt2") for each in interface.functions}
        return Executor(functions, interface, weights)

    def function(self, path):
        for op, _ in BY_NUMPY.values():
            operator_of(op)  # torch reads a file only once the operators that it names are defined
        with path.open("rb") as file:
            return torch.export.load(file)


target = NumpyFused()
