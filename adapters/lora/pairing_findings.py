"""The findings on an adapter's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.adapters.lora.base import WHOLE, Base
from bringup.adapters.lora.spelling import Spelling
from bringup.diagnostics import Diagnostic, did_you_mean
from bringup.grouping import digits, listed
from bringup.spec import TensorInfo


def not_transposed(info: TensorInfo, other: TensorInfo) -> Diagnostic:
    """BU168 for a factor of a tied head that is not the transpose of the embedding's."""
    return Diagnostic(
        code="BU168",
        message=f"`{info.name}` is not `{other.name}` with its axes exchanged, and `ensure_weight_tying` has the two "
        "change one matrix",
        help="get the adapter's files again: peft saves one adapter's factors under both names",
        sources=(info.name, other.name),
        file=str(info.file or ""),
        tensor=info.name,
    )


def halves(infos: Sequence[TensorInfo]) -> Diagnostic:
    names = tuple(info.name for info in infos)
    return Diagnostic(
        code="BU163",
        message=f"{listed(names)} {'has' if len(names) == 1 else 'have'} no counterpart in the file",
        help="the file is incomplete: download it again",
        sources=names,
        file=str(infos[0].file or ""),
        tensor=names[0],
    )


def not_floats(infos: Sequence[TensorInfo]) -> Diagnostic:
    names = tuple(info.name for info in infos)
    return Diagnostic(
        code="BU161",
        message=f"{listed(names)} {'is' if len(names) == 1 else 'are'} stored as {infos[0].dtype}, "
        "and factors are read in float16, bfloat16, float32 and float64 only",
        help="write the adapter again in one of them (llama.cpp: convert_lora_to_gguf.py --outtype f16)",
        sources=names,
        file=str(infos[0].file or ""),
        tensor=names[0],
    )


def not_matrices(a: TensorInfo, b: TensorInfo, module: str) -> Diagnostic:
    """BU161 for factors with more axes: those of a convolution are convolutions (`_ConvNd` of peft's lora/layer.py)."""
    return Diagnostic(
        code="BU161",
        message=f"`{a.name}` {list(a.shape)} and `{b.name}` {list(b.shape)} are factors of a convolution, "
        "and only those of matrices are applied",
        help=f"train the adapter again without `{module.rpartition('.')[2]}` in `target_modules`: "
        "peft cannot merge it into a depthwise convolution",
        sources=(a.name, b.name),
        file=str(a.file or ""),
        tensor=a.name,
    )


def wrong_rank(a: TensorInfo, b: TensorInfo, ranks: Sequence[int], wanted: int) -> Diagnostic:
    shapes = f"`{a.name}` {list(a.shape)} and `{b.name}` {list(b.shape)}"
    says = f"the config states rank {wanted}" if wanted else "they are of different ranks"
    return Diagnostic(
        code="BU164",
        message=f"{shapes}: {says}",
        help="use the adapter_config.json that was saved with these tensors: their scale follows from it",
        expected=str(wanted or ranks[0]),
        actual=" and ".join(map(str, ranks)),
        sources=(a.name, b.name),
        file=str(a.file or ""),
        tensor=a.name,
    )


def foreign(modules: Sequence[str], whole: int, base: Base) -> Diagnostic:
    every = len(modules) >= whole
    known = {digits(name.removesuffix(WHOLE))[0] for name in base.tensors}
    guess = did_you_mean(digits(modules[0])[0], known)
    return Diagnostic(
        code="BU162",
        message=f"the base has no {'module that the adapter changes' if every else listed(modules)}"
        + (f": {listed(modules)}" if every else ""),
        help=guess or "name the model that the adapter was trained on",
        sources=tuple(modules),
    )


def changed_twice(modules: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        code="BU168",
        message=f"what {listed(modules)} change{'s' if len(modules) == 1 else ''} is changed by factors of another "
        "name too",
        help="the file contains several adapters: use one that was saved separately",
        sources=tuple(modules),
    )


def resized(copy: TensorInfo, own: TensorInfo) -> list[Diagnostic]:
    """BU165 for a tensor of the base that has another size in the adapter's file."""
    if copy.shape == own.shape:
        return []
    return [
        Diagnostic(
            code="BU165",
            message=f"`{copy.name}` has shape {list(copy.shape)}, and `{own.name}` of this base {list(own.shape)}",
            help="the base was resized before training: use the base with that vocabulary",
            expected=str(list(own.shape)),
            actual=str(list(copy.shape)),
            sources=(copy.name,),
            file=str(copy.file or ""),
            tensor=copy.name,
        )
    ]


def unread(names: Sequence[str], tensors: Mapping[str, TensorInfo]) -> Diagnostic:
    what = "is no factor" if len(names) == 1 else "are no factors"
    return Diagnostic(
        code="BU168",
        message=f"{listed(names)} {what} of a LoRA, and cannot be applied",
        help="use the adapter_config.json that was saved with them: it names modules that were trained in full",
        sources=tuple(names),
        file=str(tensors[names[0]].file or ""),
        tensor=names[0],
    )


def nothing(tensors: Mapping[str, TensorInfo], spelling: Spelling) -> Diagnostic:
    what = f"none of its {len(tensors)} tensors is a factor" if tensors else "it has no tensors"
    return Diagnostic(
        code="BU169",
        message=f"the adapter changes nothing: {what}",
        help=f"files of {spelling.name} have `lora_A` and `lora_B` in their names: name the folder that has them",
    )


def without_magnitudes(modules: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        code="BU163",
        message=f"{listed(modules)} {'has' if len(modules) == 1 else 'have'} no magnitudes, and the config states DoRA",
        help="the file is incomplete: download it again",
        sources=tuple(modules),
    )


def tied_magnitudes(info: TensorInfo) -> Diagnostic:
    """BU161: mlx-lm's have a magnitude for each token, and peft's tied head has magnitudes of its own."""
    return Diagnostic(
        code="BU161",
        message=f"`{info.name}` is of an embedding whose head it changes too, which is not supported for DoRA",
        help="merge the adapter with the program that trained it, and use that as the checkpoint",
        sources=(info.name,),
        file=str(info.file or ""),
        tensor=info.name,
    )
