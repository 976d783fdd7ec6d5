"""The parts of a finding on a quantisation: its cause, and the keys and names in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.quantization import Format, block_size, part_of
from bringup.adapters.schemes.registry import read_quantisation
from bringup.diagnostics import Severity
from bringup.grouping import grouped, roots

if TYPE_CHECKING:
    from bringup.compile.job import Job

CONFIG_KEYS = ("quantization_config", "quant_method")

Parts = Mapping[str, Mapping[str, str]]  # plain tensor → part → name


def bare_names(plan: Plan, names: Iterable[str]) -> Iterator[str]:
    """The names without the prefix that a checkpoint may have or lack."""
    return (name.removeprefix(plan.prefix) for name in names)


def parameters_of(plan: Plan, plains: Iterable[str]) -> str:
    """The parameters that read the matrices of some plain tensors, or parts of them."""
    bare = set(bare_names(plan, plains))
    readers = [
        parameter
        for parameter, names in plan.requests
        if any(name in bare or ((part := part_of(name)) and part[0] in bare) for name in bare_names(plan, names))
    ]
    return ", ".join(grouped(roots(readers, plan.signature)))


def words_for(plan: Plan, row: Format, matrices: Parts) -> dict[str, object] | None:
    """The `quantization_config` for a format, if its tensors determine all of it."""
    if "mxfp4" in row.methods:
        return {"quant_method": "mxfp4"}
    pairs = [
        (plan.headers[plain].shape, plan.headers[name].shape)
        for plain, parts in matrices.items()
        for name in parts.values()
        if plain in plan.headers
    ]
    if "nvfp4" in row.methods:
        return {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    if "fbgemm_fp8" in row.methods:
        floats = {plan.headers[plain].dtype for plain in matrices if plain in plan.headers} == {"float8_e4m3fn"}
        return {"quant_method": "fp8"} if floats else None
    block = block_size(pairs) if "fp8" in row.methods and pairs else None
    return {"quant_method": "fp8", "weight_block_size": list(block)} if block else None


def reads(job: Job, words: Mapping[str, object]) -> bool:
    """Whether a scheme reads weights that the config describes like this."""
    found = read_quantisation({"quantization_config": dict(words)}, job.family.name)
    return found.stored is not None and not any(finding.severity is Severity.ERROR for finding in found.findings)
