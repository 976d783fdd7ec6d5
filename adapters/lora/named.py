"""Whether adapter_config.json and the tensors next to it name the same modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bringup.adapters.lora.base import WHOLE, Base
from bringup.adapters.lora.config import LoraConfig
from bringup.adapters.lora.factors import Pair
from bringup.diagnostics import Diagnostic
from bringup.grouping import digits, listed

VOCAB, EXPERT, IN = "vocab", "e", "in"


def disagreements(
    pairs: Sequence[Pair], config: LoraConfig, base: Base, trained: Collection[str] = ()
) -> list[Diagnostic]:
    """BU166: modules with factors that the config does not list, and modules that it lists without factors.

    The tensors in `trained` need no factors: peft adds none to modules in `modules_to_save`. Experts and routers
    without factors are not reported: programs differ in which of them are modules.
    """
    if not config.modules and not config.parameters:
        return []
    extra = sorted({pair.module for pair in pairs if not _named(pair, config, base)})
    have = {pair.target for pair in pairs}
    changed = {
        kind: set[str]().union(*(_parameters(base, target) for target in have if (target in base.published) == kind))
        for kind in (True, False)
    }
    alike = {digits(target)[0] for target in have}
    missing: list[str] = []
    for module in _modules(base, pairs):
        target = base.own(module) + WHOLE
        linear = _is_linear(base, target)
        under_another_name = changed[target not in base.published] & _parameters(base, target)
        optional = EXPERT in _axes(base, target) or ".experts." in target
        if (
            target not in have
            and target not in trained
            and config.targets_module(module, linear=linear)
            and (digits(target)[0] in alike if optional else not under_another_name)
        ):
            missing.append(module)
    found: list[Diagnostic] = []
    if extra:
        message = f"{listed(extra)} {_have(extra)} factors, and `target_modules` of the config does not name them"
        found.append(_finding(message, extra))
    if missing:
        message = f"`target_modules` of the config names {listed(missing)}, which {_have(missing)} no factors"
        found.append(_finding(message, missing))
    return found


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _named(pair: Pair, config: LoraConfig, base: Base) -> bool:
    parameter = pair.module + pair.target[len(base.own(pair.module)) :]
    linear = not pair.embedding and _is_linear(base, pair.target)
    return config.targets_module(pair.module, linear=linear) or config.targets_parameter(parameter)


def _modules(base: Base, pairs: Iterable[Pair]) -> list[str]:
    """The base's modules that have a matrix, with the prefix of the adapter's names."""
    carried = {pair.module[: len(pair.module) - len(base.bare(pair.module))] for pair in pairs} - {""}
    prefix = min(carried, default="")
    modules = [
        base.bare(name.removesuffix(WHOLE)) for name, info in base.tensors.items() if _is_matrix(name, len(info.shape))
    ]
    return [name if name.partition(".")[0] in base.outside else prefix + name for name in modules]


def _is_matrix(name: str, axes: int) -> bool:
    return axes == 2 and name.endswith(WHOLE)


def _axes(base: Base, target: str) -> set[str]:
    return set[str]().union(*(use.axes for use in base.uses.get(target, ())))


def _parameters(base: Base, target: str) -> set[str]:
    return {use.entry.declared.name for use in base.uses.get(target, ())}


def _is_linear(base: Base, target: str) -> bool:
    """Whether it is a linear layer that is not the head."""
    axes = _axes(base, target)
    return VOCAB not in axes and (IN in axes or EXPERT in axes)


def _finding(message: str, names: Sequence[str]) -> Diagnostic:
    help = "use the adapter_config.json that was saved with these tensors"
    return Diagnostic(code="BU166", message=message, help=help, sources=tuple(names))
