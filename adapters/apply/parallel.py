"""The division of a model among ranks: tensor, expert and pipeline parallelism, and the position of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bringup.diagnostics import BringupError, fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The position of a rank. It holds part `expert_tp` of `expert_tps` of each of its experts."""

    number: int
    stage: int
    tp: int
    ep: int
    expert_tp: int
    expert_tps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """`pp` stages of max(tp, ep) ranks each; one of `tp` and `ep` divides the other.

    Ranks are numbered stage by stage, as in TensorRT-LLM and vLLM. Each group of tp / ep consecutive ranks divides
    complete experts among its ranks, as with SGLang's `ep_size`; if `ep` is larger than `tp`, attention and dense
    layers are replicated in ep / tp groups of `tp` ranks, and each rank has complete experts.

    `stage_layers`: the number of layers of each stage; () distributes them evenly, with one more in the first stages
    (as numpy's array_split). `vocab_multiple`: the vocabulary is padded with zeros to a multiple of it and of `tp`.
    `experts` is the logical expert of each physical one, by layer (a single row applies to all layers); () is one
    physical expert for each logical one. `redundant` adds that many physical experts, which repeat the first logical
    ones. `bias`: a sum over ranks must add the bias of a row-parallel layer once, so the `first` rank has it and the
    others have zeros; or `every` rank has it, if it is added after the sum. `vocab`: whether the embedding is divided
    like the head, or complete on every rank. `expert_groups`: the ranks that divide the same complete experts are
    `consecutive`, or `strided`, as in TensorRT-LLM: every ep-th rank.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1
    stage_layers: tuple[int, ...] = ()
    vocab_multiple: int = 1
    experts: tuple[tuple[int, ...], ...] = ()
    redundant: int = 0
    bias: Literal["first", "every"] = "first"
    vocab: Literal["both", "head"] = "both"
    expert_groups: Literal["consecutive", "strided"] = "consecutive"

    def __post_init__(self) -> None:
        """Raises BU045 for values that do not describe a group of ranks."""
        small, large = sorted((self.tp, self.ep))
        if min(small, self.pp, self.vocab_multiple, self.redundant + 1) < 1:
            raise _refused("numbers of ranks begin at 1", "use 1 for what is not divided")
        if large % small:
            message = f"{self.tp} tensor-parallel and {self.ep} expert-parallel ranks do not share a stage"
            raise _refused(message, "use a --tp that divides --ep, or an --ep that divides --tp")
        if self.stage_layers and (len(self.stage_layers) != self.pp or min(self.stage_layers) < 1):
            message = f"{len(self.stage_layers)} numbers of layers, {list(self.stage_layers)}, for {self.pp} stages"
            raise _refused(message, "give one positive number for each stage")
        if self.stage_layers and self.pp == 1:
            message = f"{list(self.stage_layers)} has the number of layers of each stage, but there is one stage"
            raise _refused(message, "give the number of stages too, or omit the numbers of layers")
        if self.experts and self.redundant:
            message = "an expert map already repeats experts, and redundant experts are requested too"
            raise _refused(message, "name the repeated experts in the map, or give no map")

    @property
    def stage_ranks(self) -> int:
        """The ranks of one stage."""
        return max(self.tp, self.ep)

    @property
    def size(self) -> int:
        """All ranks."""
        return self.pp * self.stage_ranks

    @property
    def is_whole(self) -> bool:
        """Whether there is one rank, which has every parameter as the graph declares it."""
        return self.size == 1 and self.vocab_multiple == 1 and not self.experts and not self.redundant

    def rank(self, number: int) -> Rank:
        """The position of a rank. Raises BU045 for a number out of range."""
        if not 0 <= number < self.size:
            raise _refused(f"rank {number} is out of range", f"ranks are 0 to {self.size - 1}")
        stage, at = divmod(number, self.stage_ranks)
        expert_tps = self.stage_ranks // self.ep
        ep, expert_tp = divmod(at, expert_tps)
        if self.expert_groups == "strided":
            expert_tp, ep = divmod(at, self.ep)
        return Rank(number=number, stage=stage, tp=at % self.tp, ep=ep, expert_tp=expert_tp, expert_tps=expert_tps)

    def stages(self, layers: int) -> list[range]:
        """The layers of each stage. Raises BU045 for too few layers, or if `stage_layers` has another total."""
        if self.pp > max(layers, 1):
            raise _refused(f"{layers} layers do not fill {self.pp} pipeline stages", "use fewer stages")
        even = [layers // self.pp + (stage < layers % self.pp) for stage in range(self.pp)]
        counts: Sequence[int] = self.stage_layers or even
        if sum(counts) != layers:
            message = f"the stages have {sum(counts)} layers together, the model has {layers}"
            raise _refused(message, "correct the numbers of layers")
        starts = [sum(counts[:stage]) for stage in range(self.pp)]
        return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]

    def physical(self, logical: int, layer: int) -> tuple[int, ...]:
        """The logical expert of every physical one of a layer.

        Raises BU138 if the map does not fit, or if redundant experts exceed one copy of each expert on each rank.
        """
        if not self.experts:
            most = logical * (self.ep - 1)
            if self.redundant > most:
                copies = f"{most:,} copies of the {logical:,} experts of a layer"
                message = f"{self.redundant:,} redundant experts: with {self.ep} expert-parallel ranks, {copies}"
                help = (
                    f"use at most {most:,}" if most else "use --ep N, whose ranks have copies, or no redundant experts"
                )
                raise fail("BU138", f"{message} put each expert on every rank", help=help)
            return (*range(logical), *(index % logical for index in range(self.redundant)))
        if len(self.experts) > 1 and layer >= len(self.experts):
            message = f"the expert map has {len(self.experts)} layers, and layer {layer} has experts"
            raise fail("BU138", message, help="give one row for every layer of the model, or one for all")
        row = self.experts[layer if len(self.experts) > 1 else 0]
        absent = sorted(set(range(logical)) - set(row))
        if absent or max(row) >= logical or min(row) < 0:
            wrong = f"lacks expert {absent[0]}" if absent else f"names expert {max(row)}"
            message = f"the expert map of layer {layer} {wrong}; the layer has experts 0 to {logical - 1}"
            raise fail("BU138", message, help="name each logical expert at least once")
        return row


def _refused(message: str, help: str) -> BringupError:
    return fail("BU045", message, help=help)
