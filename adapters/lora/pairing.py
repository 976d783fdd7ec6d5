"""Pairs of factors: each A with its B, the tensor of the base that they change, rank and scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bringup.adapters.lora.base import WHOLE, Base
from bringup.adapters.lora.config import LoraConfig
from bringup.adapters.lora.factors import Layout, Pair
from bringup.adapters.lora.pairing_findings import (
    changed_twice,
    foreign,
    halves,
    not_floats,
    not_matrices,
    not_transposed,
    nothing,
    resized,
    tied_magnitudes,
    unread,
    without_magnitudes,
    wrong_rank,
)
from bringup.adapters.lora.spelling import Part, Spelling
from bringup.adapters.lora.trained import Trained, absent, misfit, replaced_twice, trained
from bringup.diagnostics import Diagnostic
from bringup.graphs.core.axes import parse
from bringup.spec import FLOATS, TensorInfo

Key = tuple[str, int]  # a module, and the number of wrappers around the parameter
Sides = dict[Key, dict[str, tuple[Part, TensorInfo]]]


@dataclass(slots=True)
class Pairing:
    """`pairs` that are complete and match the base; `copies` are tensors that the base has too, by its names.

    `transposed`: tensors that are the transpose of another one. `trained` are tensors of the base, by its names, with
    the values that replace them.
    """

    pairs: list[Pair] = field(default_factory=list[Pair])
    copies: dict[str, TensorInfo] = field(default_factory=dict[str, TensorInfo])
    transposed: list[tuple[TensorInfo, TensorInfo]] = field(default_factory=list[tuple[TensorInfo, TensorInfo]])
    trained: dict[str, Trained] = field(default_factory=dict[str, Trained])
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])


def paired(tensors: Mapping[str, TensorInfo], spelling: Spelling, config: LoraConfig, base: Base) -> Pairing:
    """The pairs of an adapter's tensors.

    Findings: BU161 (factors that are not floats, or not matrices), BU162 (modules that the base does not have), BU163
    (a factor without the other, or without magnitudes), BU164 (a rank that differs from the config's), BU165 (a tensor
    with another size in the base), BU166 (a trained module without tensors), BU168 (tensors that are not factors, or a
    second adapter's), BU169 (no factors).
    """
    found = Pairing()
    sides = _sides(tensors, spelling, config, base, found)
    infos = [info for both in sides.values() for _, info in both.values()]
    if coded := [info for info in infos if info.dtype not in FLOATS]:
        found.findings.append(not_floats(coded))
        return found
    whole = {key: both for key, both in sides.items() if {"a", "b"} <= both.keys()}
    if len(whole) < len(sides):
        found.findings.append(halves([i for key, both in sides.items() if key not in whole for _, i in both.values()]))
    if config.dora and (plain := [key[0] for key, both in whole.items() if "m" not in both]):
        found.findings.append(without_magnitudes(plain))
    targets = {key: _target(key, config, base) for key in whole}
    if unknown := sorted({key[0] for key, target in targets.items() if not target}):
        found.findings.append(foreign(unknown, len(whole), base))
    first = {target: key for key, target in reversed(targets.items()) if target}
    if twice := [key[0] for key, target in targets.items() if target and first[target] != key]:
        found.findings.append(changed_twice(twice))
    if config.tied:
        _without_tied_heads(first, whole, base, found)
    for target, key in reversed(first.items()):
        found.findings += _pair(whole[key], target, spelling, config, base, found.pairs)
    return found


def _sides(
    tensors: Mapping[str, TensorInfo], spelling: Spelling, config: LoraConfig, base: Base, found: Pairing
) -> Sides:
    """The factors of each module; copies of the base's tensors, trained ones, and all others are added to `found`."""
    sides: Sides = {}
    rest: list[str] = []
    for name, info in tensors.items():
        part = spelling.part(name)
        if part and (config.dora or part.side != "m") and part.side not in sides.get((part.module, part.depth), ()):
            sides.setdefault((part.module, part.depth), {})[part.side] = part, info
        elif (module := spelling.copied(name)) and base.own(module) + WHOLE in base.tensors:
            found.findings += resized(info, base.tensors[base.own(module) + WHOLE])
            found.copies[base.own(module) + WHOLE] = info
        elif own := trained(name, info, config, base):
            target, values = own
            if target in found.trained:
                found.findings.append(replaced_twice(target, info, found.trained[target].info))
            found.trained[target] = values
            found.findings += filter(None, [misfit(target, values, base)])
        else:
            rest.append(name)
    for target, head in base.tied.items():  # peft trains the rows of the head with those of the embedding
        if target in found.trained and found.trained[target].rows:
            found.trained.setdefault(head, found.trained[target])
    found.findings += absent(config, found.trained)
    if rest:
        found.findings.append(unread(rest, tensors))
    if not sides:
        found.findings.append(nothing(tensors, spelling))
    return sides


def _target(key: Key, config: LoraConfig, base: Base) -> str:
    """The tensor of the base that a module's factors change; "" if there is none.

    If parameters of a module are wrapped in one another, the first has the most wrappers around it.
    """
    module, depth = key
    own = base.own(module)
    if own + WHOLE in base.tensors and not depth:
        return own + WHOLE
    inside = [name for name in base.tensors if name.startswith(f"{own}.") and "." not in name[len(own) + 1 :]]
    wrapped = [
        name
        for name in inside
        if len(base.tensors[name].shape) == 3 and config.targets_parameter(module + name[len(own) :])
    ]
    return wrapped[-1 - depth] if depth < len(wrapped) else ""


def _pair(
    both: Mapping[str, tuple[Part, TensorInfo]],
    target: str,
    spelling: Spelling,
    config: LoraConfig,
    base: Base,
    pairs: list[Pair],
) -> list[Diagnostic]:
    """Adds a pair; if it is a convolution's or its rank is wrong, returns the findings instead (BU161, BU164)."""
    (part, a), (_, b) = both["a"], both["b"]
    magnitude = both["m"][1] if "m" in both else None
    shape = base.tensors[target].shape
    experts = len(shape) == 3
    layout = spelling.layout(embedding=part.embedding, experts=experts)
    parameter = part.module + target[len(base.own(part.module)) :]
    named = parameter if config.targets_parameter(parameter) else part.module  # patterns of the config match it
    if named == part.module and _convolves(a, b, shape):
        return [not_matrices(a, b, part.module)]
    if magnitude and part.embedding and (spelling.tie or config.tied):
        return [tied_magnitudes(magnitude)]
    wanted = config.rank_of(named)
    ranks = [_rank(info, axes, shape[0] if experts else 1) for info, axes in ((a, layout.a), (b, layout.b))]
    rank = wanted or ranks[0]
    if not rank or set(ranks) != {rank}:
        return [wrong_rank(a, b, ranks, wanted)]
    pair = Pair(
        module=part.module, target=target, a=a, b=b, rank=rank, scale=config.scale_of(named, rank),
        embedding=part.embedding, layout=layout, magnitude=magnitude,
    )  # fmt: skip
    pairs.append(pair)
    if part.embedding and (spelling.tie or config.tied) and target in base.tied:
        transposed = Layout(a=layout.b.replace("out", "in"), b=layout.a.replace("in", "out"))
        head = replace(pair, target=base.tied[target], a=b, b=a, embedding=False, layout=transposed)
        if config.tied:
            head = replace(head, scale=config.scale_of(head.target.removesuffix(WHOLE), rank))
        pairs.append(head)
    return []


def _without_tied_heads(
    first: dict[str, Key], whole: Mapping[Key, Mapping[str, tuple[Part, TensorInfo]]], base: Base, found: Pairing
) -> None:
    """Drops factors of heads that are tied to an embedding with factors: peft saves the embedding's twice.

    Source: `_add_targets_to_tie` and `_create_and_replace` of src/peft/tuners/lora/model.py. BU168 for other sizes.
    """
    for target, head in base.tied.items():
        if target not in first or head not in first or not whole[first[target]]["a"][0].embedding:
            continue
        embedding, own = whole[first[target]], whole[first.pop(head)]
        pairs = [(own[side][1], embedding[other][1]) for side, other in ("ab", "ba")]
        found.transposed += pairs
        found.findings += [not_transposed(info, other) for info, other in pairs if info.shape != other.shape[::-1]]


def _rank(info: TensorInfo, axes: str, experts: int) -> int:
    """The rank by a factor's shape; 0 if it is invalid."""
    parsed = parse(axes)
    if len(parsed) != len(info.shape):
        return 0
    for axis, size in zip(parsed, info.shape, strict=True):
        names = {node.name for node in axis.walk()}
        if "rank" in names:
            of = experts if "e" in names else 1
            return size // of if size % of == 0 else 0
    return 0


def _convolves(a: TensorInfo, b: TensorInfo, shape: Sequence[int]) -> bool:
    """Whether factors are a convolution's, of this shape: A has its taps, and B has one tap."""
    taps = tuple(shape[2:])
    return bool(taps) and (a.shape[2:], b.shape[2:]) == (taps, (1,) * len(taps))
