"""Tensors of the base that an adapter has trained itself: whole ones, and rows of an embedding.

Sources: `ModulesToSaveWrapper` and `TrainableTokensWrapper` of src/peft/utils/other.py, `TrainableTokensLayer` of
src/peft/tuners/trainable_tokens/layer.py (the tensor `trainable_tokens_delta` has the rows themselves), and
`get_lora_bias_state_dict` of src/peft/tuners/lora/model.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bringup.adapters.lora.base import WHOLE, Base
from bringup.adapters.lora.config import LoraConfig
from bringup.diagnostics import Diagnostic
from bringup.grouping import listed
from bringup.spec import FLOATS, TensorInfo

if TYPE_CHECKING:
    import numpy as np

NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+?)"
    r"(?:(?P<rows>\.token_adapter\.trainable_tokens_delta)|(?:\.base_layer)?\.(?P<kind>[^.]+))"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """The values of a tensor of the base; `rows`: only of these rows, in this order. `key` is that of the config."""

    info: TensorInfo
    key: str
    rows: Sequence[int] = ()

    def over(self, base: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The base's values with these, in the base's dtype. `own` are those of `info`."""
        import numpy as np

        with np.errstate(over="ignore"):
            values = own.astype(base.dtype)
        if not self.rows:
            return values.reshape(base.shape)
        found = np.array(base)
        found[list(self.rows)] = values
        return found


def trained(name: str, info: TensorInfo, config: LoraConfig, base: Base) -> tuple[str, Trained] | None:
    """The tensor of the base that a tensor of the adapter replaces, by the base's name; None if it replaces none."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    module, own = found["module"], base.own(found["module"])
    target = own + WHOLE if found["rows"] else f"{own}.{found['kind']}"
    if target not in base.tensors:
        return None
    if found["rows"]:
        rows = next((rows for end, rows in config.tokens.items() if module.endswith(end)), ())
        return (target, Trained(info, "trainable_token_indices", rows)) if rows else None
    tied = [name.removesuffix(WHOLE) for name, head in base.tied.items() if config.tied and head == target]
    modules = [module, *tied]
    if any(above.endswith(end) for each in modules for end in config.saved for above in _above(each)):
        return target, Trained(info, "modules_to_save")
    return (target, Trained(info, "bias")) if config.biases and found["kind"] == "bias" else None


def _above(module: str) -> Iterable[str]:
    """A module and all that it is part of."""
    sections = module.split(".")
    return (".".join(sections[:count]) for count in range(len(sections), 0, -1))


def misfit(target: str, found: Trained, base: Base) -> Diagnostic | None:
    """BU161 for values that are not floats, BU165 for another size than the base's."""
    info, whole = found.info, base.tensors[target]
    shape = (len(found.rows), *whole.shape[1:]) if found.rows else whole.shape
    beyond = [row for row in found.rows if row >= whole.shape[0]]
    at: dict[str, Any] = {"sources": (info.name,), "file": str(info.file or ""), "tensor": info.name}
    if info.dtype not in FLOATS:
        message = f"`{info.name}` is stored as {info.dtype}, and only floats are merged"
        return Diagnostic(code="BU161", message=message, help="save the adapter again in floats", **at)
    if info.shape == shape and not beyond:
        return None
    message = f"`{info.name}` has shape {list(info.shape)}; for `{target}` of this base it is {list(shape)}"
    sizes = {"expected": str(list(shape)), "actual": str(list(info.shape))}
    if beyond:
        message = f"`trainable_token_indices` has {beyond[0]}, and `{target}` of this base has {whole.shape[0]} rows"
        sizes = {}
    help = "the base was resized before training, or is another: use the base that the adapter was trained on"
    return Diagnostic(code="BU165", message=message, help=help, **sizes, **at)


def replaced_twice(target: str, info: TensorInfo, other: TensorInfo) -> Diagnostic:
    """BU168 for two tensors of the adapter that replace one of the base."""
    return Diagnostic(
        code="BU168",
        message=f"`{other.name}` and `{info.name}` both replace `{target}`",
        help="the file contains several adapters: use one that was saved separately",
        sources=(other.name, info.name),
        file=str(info.file or ""),
        tensor=info.name,
    )


def absent(config: LoraConfig, targets: Iterable[str]) -> list[Diagnostic]:
    """BU166 for a name in the config of which the adapter has no tensor. `targets` are those that it replaces."""
    modules = [target.rpartition(".")[0] for target in targets]
    help = "use the adapter_config.json that was saved with these tensors"
    findings: list[Diagnostic] = []
    for key, ends in (("modules_to_save", config.saved), ("trainable_token_indices", config.tokens)):
        lost = [end for end in ends if not any(each.endswith(end) for module in modules for each in _above(module))]
        if lost:
            what = f" has {listed(lost)}," if any(lost) else " has rows of the embedding,"
            message = f"`{key}` of the config{what} and no tensor of the adapter belongs to them"
            findings.append(Diagnostic(code="BU166", message=message, help=help))
    return findings
