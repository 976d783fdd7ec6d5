"""Graph: a model in three stages, so that each kind of layer is traced and lowered once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Module, Param, State
from bringup.graphs.core.options import current_options
from bringup.graphs.core.signature import Declared, Signature
from bringup.graphs.core.step import CacheSizes, Step
from bringup.spec import DTYPES

if TYPE_CHECKING:
    from torch import Tensor


HIDDEN, OWN = "hidden", "own"  # the inputs of a draft: see `Graph.inputs`
# A hidden state of a model: the number of layers before it; from -1, the last one, downwards; or half of the layers.
MainState = int | Literal["middle"]


class Config(Protocol):
    """The protocol of every family's frozen config dataclass; see `config.HFConfig`."""

    family: ClassVar[str]

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


class Graph(Module):
    """A causal language model: `prologue`, then `layers` one after the other, then `epilogue`.

    `prologue(step)` returns (x[N, m], *shared): the embedded tokens, and values that all layers share (rope rows). Each
    layer is called as `layer(x, *shared, step) -> x`. `epilogue(x_Rm)` returns logits[R, vocab] of `final(x_Rm)`.

    `carried` is the number of values [N, …] that layers pass on, such as 2 for a hidden state and a residual that is
    not yet added. `prologue` returns them first, each layer accepts them as its first arguments and returns them as a
    tuple, and `final`, `epilogue` and `hidden_state` accept them. `prologue` returns them in the dtypes and shapes that
    layers return.

    `options` are the choices of the deployment (`core.options`); layers read them while the graph is built.
    """

    layer_path: ClassVar[str]  # the attribute path of the list of layers: "transformer.h"
    carried: int = 1

    def __init__(self, config: Config, dtype: str) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.options = current_options()

    @property
    def layers(self) -> Sequence[Module]:
        """The list at `layer_path`."""
        found: object = self
        for name in self.layer_path.split("."):
            found = getattr(found, name)
        return found  # type: ignore[return-value]  a list here, a ModuleList after to_torch

    @property
    def cache_dtype(self) -> str:
        """The dtype of attention caches."""
        return self.options.cache_dtype or self.dtype

    @property
    def inputs(self) -> Mapping[str, int]:
        """Further inputs of `prologue`: names, and the channels of each row [N, channels]. Usually empty.

        Those of a draft: `hidden` are hidden states of the main model. Without an input `own`, it is also the draft's
        own last hidden state after its proposals; with it, `own` is, and a row has zeros for the one it does not read.
        """
        return {}

    @property
    def main_states(self) -> Sequence[MainState]:
        """Which hidden states of the main model the input `hidden` of a draft concatenates, in this order."""
        return (-1,)

    def text_model(self, raw: Mapping[str, Any]) -> TextModel | None:
        """The text model inside, which other programs load as a model of its own. Usually None.

        `raw`: the config.json that the graph's config was read from.
        """
        return None

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        """The carried values of the first layer: hidden states [N, m] of the step's tokens, then those of the graph."""
        raise NotImplementedError

    def hidden_state(self, *carried: Any, **_: Any) -> Tensor:
        """The hidden state [N, m] that the reference's layers return, computed from the carried values; by default the
        first."""
        return carried[0]

    def final(self, *carried: Any, **_: Any) -> Tensor:  # a graph names its carried values in its own signature
        """The last hidden states [N, m], the input of the head."""
        raise NotImplementedError

    def epilogue(self, *carried: Any, **_: Any) -> Tensor:
        """Logits [R, vocab] of R rows."""
        raise NotImplementedError

    def signature(self) -> Signature:
        """Every parameter of the graph; declared dtypes that are None become the graph's dtype."""
        words = self.parameter_checkpoint_names() if any(part.checkpoint_names for part in self.parts()) else {}
        declared = {name: _declare(name, leaf, self.dtype) for name, leaf in self.leaves(Param)}
        return Signature(
            {name: replace(d, checkpoint_names=words[name]) if name in words else d for name, d in declared.items()}
        )

    def layer_classes(self) -> list[int]:
        """For each layer, the index of the first one with the same structure; each structure is lowered once."""
        seen: list[object] = []
        for layer in self.layers:
            seen.append(layer.structural_key())
        return [seen.index(key) for key in seen]

    def states(self) -> dict[str, State]:
        """The states that have memory of their own, by name."""
        return {name: leaf for name, leaf in self.leaves(State) if leaf.of is None}

    def borrowed(self) -> dict[str, str]:
        """For each state that is one of an earlier layer, by name, the name of that one."""
        names = {id(leaf): name for name, leaf in self.states().items()}
        return {name: names[id(leaf.of)] for name, leaf in self.leaves(State) if leaf.of is not None}

    def structural_key(self) -> tuple[Any, ...]:
        """As that of a module, with the states that layers share."""
        return (*super().structural_key(), sorted(self.borrowed().items()))

    def recompute_lengths(self) -> list[int]:
        """The lengths in tokens beyond which the states of a sequence are recomputed, in order."""
        return sorted({module.recompute_past for module in self.parts() if module.recompute_past is not None})

    def states_vary_past(self) -> int | None:
        """The length in tokens beyond which states depend on the length of the sequence when they were computed."""
        return min((module.varies_past for module in self.parts() if module.varies_past is not None), default=None)

    def state_bytes(self, sizes: CacheSizes | None = None) -> int:
        """Bytes of paged State for each token of context, all layers together; without `sizes`, no state is a ring."""
        of_tokens = (leaf for leaf in self.states().values() if leaf.axes[0].name == "slot")
        return sum(self._row_bytes(leaf) for leaf in of_tokens if sizes is None or leaf.kind(sizes) == "paged")

    def cache_bytes(self, sizes: CacheSizes) -> int:
        """Bytes of every State, those of padding among them, all layers together."""
        states = ((leaf, leaf.sized(sizes)[0]) for leaf in self.states().values())
        return sum(self._row_bytes(leaf) * rows for leaf, rows in states)

    def ring_bytes(self, sizes: CacheSizes) -> int:
        """Bytes of the rings of all sequences and of padding, all layers together; see `State`."""
        states = (leaf for leaf in self.states().values() if leaf.kind(sizes) == "ring")
        return sum(self._row_bytes(leaf) * (sizes.ring(leaf.window) or 0) * sizes.rows for leaf in states)

    def recurrent_bytes(self, sizes: CacheSizes) -> int:
        """Bytes of the states with one row for each sequence, that of padding among them, all layers together."""
        states = (leaf for leaf in self.states().values() if leaf.kind(sizes) == "sequence")
        return sum(self._row_bytes(leaf) * sizes.rows for leaf in states)

    def _row_bytes(self, leaf: State) -> int:
        return math.prod(shape_of(leaf.axes[1:])) * DTYPES[leaf.declared_dtype or self.dtype].bits // 8


def _declare(name: str, leaf: Param, dtype: str) -> Declared:
    return Declared(name, leaf.axes, leaf.declared_dtype or dtype, leaf.pack, leaf.site)


@dataclass(frozen=True, slots=True)
class TextModel:
    """A graph inside another one, and its config.json. Names begin with `inside` there, and with `alone` in itself."""

    graph: Graph
    config: dict[str, Any]
    inside: str
    alone: str
