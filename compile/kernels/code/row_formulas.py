"""Expressions of operations on complete rows: a tile contains all of the last axis."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.compile.kernels.code.index import At, Index, broadcast
from bringup.compile.kernels.code.types import TYPES, power_of_two
from bringup.compile.kernels.code.writer import Code, Formula, NotTaken, Value, kind_of
from bringup.compile.schedule.graph.op_graph import Argument, Node, View

LEAST = 'float("-inf")'


def _row(code: Code, view: object, lead: Index, kind: str = "float") -> tuple[str, str, str, int]:
    """A row of a view as a tile: its variable, the variable of its last axis, the mask of that axis, and its length."""
    if not isinstance(view, View) or view.shape[-1] not in code.lanes:
        raise NotTaken
    if code.mask(lead) in {code.masks[name] for name in code.lanes.values()}:  # rows must not vary along the last axis
        raise NotTaken
    lane = code.lanes[view.shape[-1]]
    value = code.cast(code.at(view, (*lead, At(lane))), kind)
    return value, lane, code.masks[lane], view.shape[-1]


def _last(dims: Argument, axes: int) -> bool:
    """Whether `dims` is the last of `axes` axes and no other."""
    listed = dims if isinstance(dims, tuple) else (dims,)
    return [each % axes for each in listed if isinstance(each, int)] == [axes - 1]


def _reduced(code: Code, node: Node, name: str, index: Index) -> Value:
    source = node.arguments[0]
    if not isinstance(source, View) or not _last(node.argument("dim"), len(source.shape)):
        raise NotTaken
    lead = index[:-1] if node.argument("keepdim") else index
    kind = kind_of(code.graph.buffers[name].dtype)
    value, _, mask, width = _row(code, source, lead, kind)
    if kind == "int" and node.short == "sum":
        text = f"tl.sum(tl.where({mask}, {value}, 0), 1, keep_dims=True)"
        return code.given(text, code.graph.buffers[name], lead)
    text = {
        "sum": f"tl.sum(tl.where({mask}, {value}, 0.0), 1, keep_dims=True)",
        "mean": f"tl.sum(tl.where({mask}, {value}, 0.0), 1, keep_dims=True) / {float(width)}",
        "amax": f"tl.max(tl.where({mask}, {value}, {LEAST}), 1, keep_dims=True)",
    }[node.short]
    if kind != "float":
        raise NotTaken
    return code.given(text, code.graph.buffers[name], lead)


def _softmax(code: Code, node: Node, name: str, index: Index) -> Value:
    source = node.arguments[0]
    if not isinstance(source, View) or not _last(node.argument("dim"), len(source.shape)):
        raise NotTaken
    lead = index[:-1]
    value, _, mask, _ = _row(code, source, lead)
    most = code.variable(f"tl.max(tl.where({mask}, {value}, {LEAST}), 1, keep_dims=True)", lead)
    total = code.variable(f"tl.sum(tl.where({mask}, tl.exp({value} - {most}), 0.0), 1, keep_dims=True)", lead)
    own = code.cast(code.at(source, index), "float")
    return code.given(f"quotient(tl.exp({own} - {most}), {total})", code.graph.buffers[name], index)


def _rms_norm(code: Code, node: Node, name: str, index: Index) -> Value:
    x, weight, eps, offset = (node.argument(key) for key in ("x", "weight", "eps", "offset"))
    lead = index[:-1]
    value, _, mask, width = _row(code, x, lead)
    if not isinstance(x, View) or not isinstance(weight, View):
        raise NotTaken
    text = f"tl.sum(tl.where({mask}, {value} * {value}, 0.0), 1, keep_dims=True) / {float(width)} + {eps}"
    factor = code.variable(f"tl.rsqrt({text})", lead)
    own = code.cast(code.at(x, index), "float")
    by = code.cast(code.at(weight, index[-1:]), "float")
    if offset:
        text = f"{own} * {factor} * ({by} + {offset})"
    elif node.argument("round_last"):
        text = f"{own} * {factor} * {by}"
    else:
        rounded = TYPES[code.graph.buffers[x.buffer].dtype]
        text = f"({own} * {factor}).to({rounded}).to(tl.float32) * {by}"
    return code.given(text, code.graph.buffers[name], index)


def _layer_norm(code: Code, node: Node, name: str, index: Index) -> Value:
    x, weight, bias, eps = (node.argument(key) for key in ("x", "weight", "bias", "eps"))
    lead = index[:-1]
    value, _, mask, width = _row(code, x, lead)
    if not (isinstance(x, View) and isinstance(weight, View) and isinstance(bias, View)):
        raise NotTaken
    mean = code.variable(f"tl.sum(tl.where({mask}, {value}, 0.0), 1, keep_dims=True) / {float(width)}", lead)
    centred = f"tl.where({mask}, {value} - {mean}, 0.0)"
    square = code.variable(centred, (*lead, At(code.lanes[width])))
    factor = code.variable(f"tl.rsqrt(tl.sum({square} * {square}, 1, keep_dims=True) / {float(width)} + {eps})", lead)
    own = code.cast(code.at(x, index), "float")
    by, plus = (code.cast(code.at(view, index[-1:]), "float") for view in (weight, bias))
    return code.given(f"({own} - {mean}) * {factor} * {by} + {plus}", code.graph.buffers[name], index)


def _best(code: Code, values: str, lane: str, width: int, lead: Index) -> tuple[str, str]:
    """Variables of the highest value of a row and of its index; the lowest index among equal values."""
    most = code.variable(f"tl.max({values}, 1, keep_dims=True)", lead)
    at = code.variable(f"tl.min(tl.where({values} == {most}, {lane}, {width - 1}), 1, keep_dims=True)", lead)
    return most, at


def _top_experts(code: Code, node: Node, name: str, index: Index) -> Value:
    """Writes code for both results of the node: the selected experts and their scores. Returns the one named `name`."""
    lead, number = index[:-1], node.argument("count")
    scores, _, mask, width = _row(code, node.argument("scores_NE"), lead)
    by = node.argument("by_NE")
    ranked = scores if by is None else _row(code, by, lead)[0]
    if not isinstance(number, int) or number not in code.lanes:
        raise NotTaken
    lane, choice = code.lanes[width], code.lanes[number]
    row = (*lead, At(lane))
    left = code.variable(f"tl.where({mask}, {ranked}, {LEAST})", row)
    taken = code.variable(f"{lane} < 0", row)
    chosen, weights = f"tl.zeros_like({choice})", f"tl.zeros_like({choice}).to(tl.float32)"
    for each in range(number):
        left_text = f"tl.where({taken}, {LEAST}, {left})"
        free = code.variable(left_text, row)
        most = code.variable(f"tl.max({free}, 1, keep_dims=True)", lead)
        equal = f"({free} == {most}) & ({taken} == 0) & {mask}"
        at = code.variable(f"tl.min(tl.where({equal}, {lane}, {width - 1}), 1, keep_dims=True)", lead)
        score = code.variable(f"tl.sum(tl.where({lane} == {at}, {scores}, 0.0), 1, keep_dims=True)", lead)
        taken = code.variable(f"{taken} | ({lane} == {at})", row)
        chosen = f"tl.where({choice} == {each}, {at}, {chosen})"
        weights = f"tl.where({choice} == {each}, {score}, {weights})"
    tile = (*lead, At(choice))
    given = Value(code.variable(f"({chosen}).to(tl.int64)", tile), "int")
    scored = Value(code.variable(weights, tile), "float")
    if index[-1] != At(choice) and not (number == 1 and index[-1] == At()):
        raise NotTaken
    for output, value in zip(node.outputs, (given, scored), strict=True):
        code.know(output, index, value)
    return given if name == node.outputs[0] else scored


def _keep_best_groups(code: Code, node: Node, name: str, index: Index) -> Value:
    lead = index[:-1]
    scores, lane, mask, width = _row(code, node.argument("scores_NE"), lead)
    groups, chosen, best = (node.argument(key) for key in ("groups", "topk_groups", "best"))
    if not (isinstance(groups, int) and isinstance(chosen, int) and isinstance(best, int)) or index[-1] != At(lane):
        raise NotTaken
    size, row = width // groups, (*lead, At(lane))
    sums: list[str] = []
    for group in range(groups):
        inside = f"({lane} >= {group * size}) & ({lane} < {(group + 1) * size}) & {mask}"
        left = code.variable(f"tl.where({inside}, {scores}, {LEAST})", row)
        total = ""
        for _ in range(best):
            most, at = _best(code, left, lane, width, lead)
            left = code.variable(f"tl.where({lane} == {at}, {LEAST}, {left})", row)
            total = f"{total} + {most}" if total else most
        sums.append(code.variable(total, lead))
    inside = f"{lane} < 0"
    for group, own in enumerate(sums):
        better = " + ".join(
            f"({other} {'>=' if n < group else '>'} {own}).to(tl.int32)" for n, other in enumerate(sums) if n != group
        )
        keep = code.variable(f"({better or 'tl.zeros_like(' + own + ').to(tl.int32)'}) < {chosen}", lead)
        inside = f"({inside}) | ({keep} & ({lane} >= {group * size}) & ({lane} < {(group + 1) * size}))"
    return code.given(f"tl.where({inside}, {scores}, {LEAST})", code.graph.buffers[name], index)


def _to_fp8(code: Code, node: Node, name: str, index: Index) -> Value:
    """The float8 codes of a row, or its scales. A scale is for the complete row, or for `columns` columns.

    `columns` must be a power of two unless it is the complete row.
    """
    lead, x, columns, known = index[:-1], node.arguments[0], node.argument("columns"), node.argument("scale")
    value, lane, mask, width = _row(code, x, lead)
    if not isinstance(x, View) or not isinstance(columns, int) or not isinstance(known, View | None):
        raise NotTaken
    last = code.lanes.get(-(-width // columns))
    if index[-1] != At(lane) and (name == node.outputs[0] or last is None or index[-1] != At(last)):
        raise NotTaken
    if known is not None:
        scales = code.cast(code.at(known, broadcast(known, index)), "float")
        of_each = scales
    else:
        tile = power_of_two(width)
        block = columns if columns < width else tile
        if power_of_two(block) != block:
            raise NotTaken
        row = f"{value} + tl.zeros_like({mask}).to(tl.float32)"
        scales = code.variable(f"scales_of({row}, {mask}, {block})", lead)
        of_each = f"spread({scales}, {block})"
    if name == node.outputs[1]:
        return Value(scales, "float")
    text = f"to_float8_e4m3fn(quotient({value}, {of_each}), {code.native_fp8})"
    return code.given(text, code.graph.buffers[name], index)


ROW_FORMULAS: Mapping[str, Formula] = {
    "sum": _reduced,
    "mean": _reduced,
    "amax": _reduced,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "to_fp8": _to_fp8,
    "top_experts": _top_experts,
    "keep_best_groups": _keep_best_groups,
}
