# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The formula of one element of each element-wise operation, copy and gather, by the operation's short name."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.compile.llvm.ir.code import Code, Formula, Index, Kind, is_real, kind_of
from bringup.compile.llvm.ir.dtypes import I64, size_of
from bringup.compile.llvm.ir.emitter import Value, real
from bringup.compile.llvm.ir.functions import absolute, maximum, minimum, rsqrt, sqrt
from bringup.compile.llvm.ir.one import ONE, WHOLE, from_library
from bringup.compile.llvm.ir.places import PLACES, kind_of_result
from bringup.compile.schedule.graph.op_graph import Argument, Node, View

_COMPARED = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_BITS = {
    **{"bitwise_and": "and_", "bitwise_or": "or_", "bitwise_xor": "xor", "__and__": "and_", "__or__": "or_"},
    **{"__xor__": "xor", "bitwise_left_shift": "shl", "bitwise_right_shift": "ashr"},
    **{"__lshift__": "shl", "__rshift__": "ashr"},
}
_LOGICAL = {"logical_and": "and_", "logical_or": "or_", "logical_xor": "xor"}


def _pair(code: Code, node: Node, index: Index, kind: Kind) -> tuple[Value, Value]:
    one, other = (code.argument(value, index, kind) for value in node.arguments[:2])
    return one, other


def _one(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    if not is_real(kind):
        value = code.argument(node.arguments[0], index, "int")
        return code.cast(value if node.short in WHOLE else _sign(code, value), "int", kind)
    return ONE[node.short](code.e, code.argument(node.arguments[0], index, kind))


def _sign(code: Code, value: Value) -> Value:
    return code.e.minimum(code.e.maximum(value, I64(-1)), I64(1))


def _gelu(code: Code, node: Node, index: Index) -> Value:
    value = code.argument(node.arguments[0], index, kind_of_result(code, node))
    return ONE["gelu_tanh" if node.argument("approximate") == "tanh" else "gelu"](code.e, value)


def _negative(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    value = code.argument(node.arguments[0], index, kind)
    return code.b.fneg(value) if is_real(kind) else code.b.neg(value)


def _absolute(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    value = code.argument(node.arguments[0], index, kind)
    return absolute(code.e, value) if is_real(kind) else code.e.maximum(value, code.b.neg(value))


def _relu(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    value = code.argument(node.arguments[0], index, kind)
    return maximum(code.e, real(0.0, value), value) if is_real(kind) else code.e.maximum(value, I64(0))  # NaN stays NaN


def _sum(code: Code, node: Node, index: Index) -> Value:
    kind, b = kind_of_result(code, node), code.b
    one, other = _pair(code, node, index, kind)
    if kind == "bool":  # the sum of booleans is their logical or
        return b.or_(one, other)
    alpha = node.argument("alpha")
    if alpha not in (None, 1):
        factor = code.argument(alpha, index, kind)
        other = b.fmul(other, factor) if is_real(kind) else b.mul(other, factor)
    if node.short == "add":
        return b.fadd(one, other) if is_real(kind) else b.add(one, other)
    return b.fsub(one, other) if is_real(kind) else b.sub(one, other)


def _product(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    one, other = _pair(code, node, index, kind)
    if kind == "bool":
        return code.b.and_(one, other)
    return code.b.fmul(one, other) if is_real(kind) else code.b.mul(one, other)


def _quotient(code: Code, node: Node, index: Index) -> Value:
    """The quotient; with a rounding mode, rounded towards zero or down."""
    kind, mode = kind_of_result(code, node), node.argument("rounding_mode")
    if mode == "floor":
        return _floored(code, node, index)
    one, other = _pair(code, node, index, kind)
    if not is_real(kind):
        return divided(code, one, other)[0]
    found = code.b.fdiv(one, other)
    return ONE["trunc"](code.e, found) if mode == "trunc" else found


def divided(code: Code, value: Value, divisor: Value) -> tuple[Value, Value]:
    """The quotient of two i64, truncated towards zero, and the remainder. Both are 0 if the divisor is 0.

    torch raises an error for a divisor of 0. The divisors 0 and -1 are replaced before the division: x86 raises an
    exception for a division by 0, and for the smallest i64 divided by -1.
    """
    b = code.b
    is_zero, is_minus = (b.icmp_signed("==", divisor, I64(each)) for each in (0, -1))
    safe = b.select(b.or_(is_zero, is_minus), I64(1), divisor)
    quotient, rest = b.sdiv(value, safe), b.srem(value, safe)
    quotient = b.select(is_zero, I64(0), b.select(is_minus, b.neg(value), quotient))
    return quotient, rest


def _floored(code: Code, node: Node, index: Index) -> Value:
    """`floor_divide`, or `remainder`, which has the sign of the divisor."""
    kind, b = kind_of_result(code, node), code.b
    value, divisor = _pair(code, node, index, kind)
    zero = real(0.0, value) if is_real(kind) else I64(0)
    if not is_real(kind):
        quotient, rest = divided(code, value, divisor)
        is_other = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, divisor), zero))
        if node.short == "remainder":
            return b.select(is_other, b.add(rest, divisor), rest)
        return b.select(is_other, b.sub(quotient, I64(1)), quotient)
    rest = from_library(code.e, "fmod", [value, divisor])
    signs = [b.fcmp_ordered("<", each, zero) for each in (rest, divisor)]
    is_other = b.and_(b.fcmp_unordered("!=", rest, zero), b.xor(signs[0], signs[1]))
    if node.short == "remainder":
        return b.select(is_other, b.fadd(rest, divisor), rest)
    whole = b.fdiv(b.fsub(value, rest), divisor)
    whole = ONE["round"](code.e, b.select(is_other, b.fsub(whole, real(1.0, whole)), whole))
    return b.select(b.fcmp_ordered("==", divisor, zero), b.fdiv(value, divisor), whole)


def _fmod(code: Code, node: Node, index: Index) -> Value:
    """The remainder with the sign of the dividend."""
    kind = kind_of_result(code, node)
    pair = _pair(code, node, index, kind)
    return from_library(code.e, "fmod", [*pair]) if is_real(kind) else divided(code, *pair)[1]


def _extreme(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    return _bounded(code, *_pair(code, node, index, kind), kind, node.short == "maximum")


def _bounded(code: Code, value: Value, bound: Value, kind: Kind, is_maximum: bool) -> Value:
    """The maximum or minimum of two values; NaN if either is NaN."""
    if kind == "bool":
        return (code.b.or_ if is_maximum else code.b.and_)(value, bound)
    if is_real(kind):
        found = (maximum if is_maximum else minimum)(code.e, bound, value)
        return code.b.select(code.b.fcmp_unordered("uno", bound, bound), bound, found)
    return (code.e.maximum if is_maximum else code.e.minimum)(value, bound)


def _clamp(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    value = code.argument(node.arguments[0], index, kind)
    for name in ("min", "max"):
        if (bound := node.argument(name)) is not None:
            value = _bounded(code, value, code.argument(bound, index, kind), kind, name == "min")
    return value


def _compared(code: Code, node: Node, index: Index) -> Value:
    kinds = {_kind_of(code, value) for value in node.arguments[:2]}
    kind: Kind = "double" if "double" in kinds else "float" if "float" in kinds else "int"
    one, other = _pair(code, node, index, kind)
    sign = _COMPARED[node.short]
    if kind == "int":
        return code.b.icmp_signed(sign, one, other)
    return (code.b.fcmp_unordered if sign == "!=" else code.b.fcmp_ordered)(sign, one, other)


def _kind_of(code: Code, value: Argument) -> Kind:
    if isinstance(value, View):
        return kind_of(code.buffers[value.buffer].dtype)
    return "float" if isinstance(value, float) else "int"


def _bits(code: Code, node: Node, index: Index) -> Value:
    """Bitwise operations on integers and booleans; shifts use the width of the dtype."""
    kind = kind_of_result(code, node)
    one, other = _pair(code, node, index, kind)
    if "shift" not in node.short:
        return getattr(code.b, _BITS[node.short])(one, other)
    bits = 8 * size_of(code.buffers[node.outputs[0]].dtype)
    is_far = code.b.icmp_unsigned(">=", other, I64(bits))
    is_left = "l" in node.short.removeprefix("bitwise_").partition("shift")[0]
    found = getattr(code.b, _BITS[node.short])(one, code.b.select(is_far, I64(63), other))
    return code.b.select(is_far, I64(0), found) if is_left else found


def _not(code: Code, node: Node, index: Index) -> Value:
    return code.b.not_(code.argument(node.arguments[0], index, kind_of_result(code, node)))


def _not_true(code: Code, node: Node, index: Index) -> Value:
    return code.b.not_(code.argument(node.arguments[0], index, "bool"))


def _logical(code: Code, node: Node, index: Index) -> Value:
    return getattr(code.b, _LOGICAL[node.short])(*_pair(code, node, index, "bool"))


def _power(code: Code, node: Node, index: Index) -> Value:
    base, power = node.arguments[:2]
    kind, b = kind_of_result(code, node), code.b
    if not is_real(kind):
        return _whole_power(code, code.argument(base, index, "int"), power)
    value = code.argument(base, index, kind)
    if power == 0.5 or power == -0.5:
        return (sqrt if power == 0.5 else rsqrt)(code.e, value)
    if power == 2 or power == 3:
        square = b.fmul(value, value)
        return square if power == 2 else b.fmul(square, value)
    return from_library(code.e, "pow", [value, code.argument(power, index, kind)])


def _whole_power(code: Code, value: Value, power: Argument) -> Value:
    """Integer power by repeated squaring; the exponent is a constant."""
    assert isinstance(power, int)
    found = I64(1)
    for bit in f"{power:b}":
        found = code.b.mul(found, found)
        found = code.b.mul(found, value) if bit == "1" else found
    return found


def _angle(code: Code, node: Node, index: Index) -> Value:
    return from_library(code.e, "atan2", [*_pair(code, node, index, kind_of_result(code, node))])


def _masked_fill(code: Code, node: Node, index: Index) -> Value:
    kind = kind_of_result(code, node)
    value, mask, other = node.arguments[:3]
    is_masked = code.argument(mask, index, "bool")
    return code.b.select(is_masked, code.argument(other, index, kind), code.argument(value, index, kind))


def _where(code: Code, node: Node, index: Index) -> Value:
    condition = code.argument(node.arguments[0], index, "bool")
    kind = kind_of_result(code, node)
    one, other = (code.argument(value, index, kind) for value in node.arguments[1:3])
    return code.b.select(condition, one, other)


def _total(code: Code, node: Node, index: Index) -> Value:
    """The sum along a short last axis, unrolled."""
    view, kind = node.arguments[0], kind_of_result(code, node)
    assert isinstance(view, View)
    lead, own, found = index[: len(view.shape) - 1], kind_of(code.buffers[view.buffer].dtype), None
    for n in range(view.shape[-1]):
        value = code.cast(code.at(view, (*lead, I64(n))), own, kind)
        found = value if found is None else (code.b.fadd if is_real(kind) else code.b.add)(found, value)
    return found


FORMULAS: Mapping[str, Formula] = {
    **PLACES,
    **dict.fromkeys(ONE, _one),
    **dict.fromkeys(_COMPARED, _compared),
    **dict.fromkeys(_BITS, _bits),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("maximum", "minimum"), _extreme),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), _logical),
    **dict.fromkeys(("remainder", "floor_divide"), _floored),
    **{"neg": _negative, "abs": _absolute, "relu": _relu, "mul": _product, "div": _quotient, "clamp": _clamp},
    **{"fmod": _fmod, "bitwise_not": _not, "logical_not": _not_true, "masked_fill": _masked_fill, "gelu": _gelu},
    **{"pow": _power, "atan2": _angle, "where": _where, "sum": _total},
}
