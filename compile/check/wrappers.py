"""Mistakes in most names of a checkpoint: a wrapper's prefix, a LoRA, another tool's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bringup.adapters.planning.plan import Plan
from bringup.compile.check.facts.cause import Cause
from bringup.compile.check.facts.requests import Readers, parameters_of, sites_of
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import Diagnostic
from bringup.grouping import digits, grouped, roots

# Names as peft 0.18 saves them (peft/utils/save_and_load.py, peft/tuners/lora/layer.py).
LORA = re.compile(r"\.(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)(?=\.|$)")
PEFT = "base_model.model."
# A tensor that identifies the origin of names, and how to convert them to transformers'.
CONVENTIONS = {
    "tok_embeddings.weight": "these are Meta's names: convert the checkpoint with transformers' "
    "convert_llama_weights_to_hf.py, which also brings the channels of q and k into its order",
    "token_embd.weight": "these are llama.cpp's names: give the .gguf file that they come from",
}


def lora(plan: Plan, readers: Readers, unread: Sequence[str]) -> Iterator[Cause]:
    """A LoRA in addition to the weights, around them (a peft model that was saved unmerged), or instead of them."""
    found = {name: match for name in unread if (match := LORA.search(name))}
    if not found:
        return
    matrices = dict.fromkeys(f"{name[: m.start()].removeprefix(PEFT)}.weight" for name, m in found.items())
    makes = {name.removeprefix(plan.prefix): parameter for name, parameter in plan.required.items()}
    parameters = dict.fromkeys(filter(None, (makes.get(name.removeprefix(plan.prefix)) for name in matrices)))
    listing = ", ".join(grouped(parameters or matrices))
    alone = len(found) == len(plan.headers)
    around = {name: set(_wrapped_by_peft(plan, name)) & set(unread) for name in readers}
    explained = readers.keys() if alone else {name for name, wrapped in around.items() if wrapped}
    finding = Diagnostic(
        code="BU132",
        message=f"{len(found)} tensors of a LoRA change `{listing}`, and are not applied"
        + (": the model itself is not in this checkpoint" if alone else ""),
        help="merge the LoRA into the model that it was trained on (peft: `merge_and_unload()`), and save that",
        parameter=listing if parameters else "",
        sources=tuple(found),
        **stored(plan, list(found)),
    )
    yield Cause(finding, frozenset({*found, *explained}.union(*around.values())))


def _wrapped_by_peft(plan: Plan, name: str) -> Iterator[str]:
    """The possible names of a tensor in peft."""
    module, _, leaf = name.removeprefix(plan.prefix).rpartition(".")
    for prefix in (PEFT, PEFT + plan.prefix):
        yield f"{prefix}{module}.{leaf}"
        yield f"{prefix}{module}.base_layer.{leaf}"


def wrapped(plan: Plan, readers: Readers, unread: Sequence[str]) -> Iterator[Cause]:
    """A prefix on every missing name."""
    there, names = set(unread), {name: name.removeprefix(plan.prefix) for name in readers}
    if len(names) < 2:
        return
    first = next(iter(names.values()))
    for head in sorted(name.removesuffix(first) for name in there if name.endswith(f".{first}")):
        prefix = head.removesuffix(plan.prefix)
        found = [next((n for n in (head + bare, prefix + bare) if n in there), "") for bare in names.values()]
        if not prefix or not all(found):
            continue
        one_prefix = all(name == head + bare for name, bare in zip(found, names.values(), strict=True))
        finding = Diagnostic(
            code="BU101",
            message=f"every name of the checkpoint has the prefix `{prefix}` ({len(names)} tensors are missing for it)",
            help=(f'state it in the adapter, Adapter(…, prefix="{head}"), or ' if one_prefix else "")
            + f"remove `{prefix}` from the names: a wrapper was saved, not the model in it",
            parameter=parameters_of(plan, readers, names),
            sources=tuple(found),
            **sites_of(plan, readers, names) | stored(plan, found),
        )
        yield Cause(finding, frozenset({*names, *(name for name in there if name.startswith(prefix))}))
        return


def prefixed(plan: Plan, readers: Readers, unread: Sequence[str]) -> Iterator[Cause]:
    """Rules that state the prefix themselves, so that it is expected twice."""
    names = {
        name: name.removeprefix(plan.prefix) for name in readers if plan.prefix and name.startswith(plan.prefix * 2)
    }
    there = [own for own in names.values() if own in unread]
    if not there:
        return
    listing = ", ".join(grouped(there))
    finding = Diagnostic(
        code="BU101",
        message=f"a rule or function names `{listing}` with the prefix `{plan.prefix}`, which rules omit",
        help=f"write `{', '.join(grouped([own.removeprefix(plan.prefix) for own in there]))}`, with {{L}} for a layer",
        parameter=parameters_of(plan, readers, names),
        sources=tuple(there),
        **sites_of(plan, readers, names) | stored(plan, there),
    )
    yield Cause(finding, frozenset({*names, *there}))


def foreign(plan: Plan, readers: Readers, unread: Sequence[str]) -> Iterator[Cause]:
    """Names by another convention: almost no expected name is present, and the others have several roots."""
    if not unread:
        return
    wanted = {*readers, *plan.required}
    present = wanted & plan.headers.keys()
    if len(present) * 10 > len(readers) or len({digits(root)[0] for root in roots(readers, wanted)}) < 3:
        return
    known = (help for name, help in CONVENTIONS.items() if name in plan.headers)
    finding = Diagnostic(
        code="BU101",
        message=f"of {len(wanted)} tensors that rules read, the checkpoint has {len(present)}: it has "
        f"`{unread[0]}` and similar names, the rules read `{next(iter(readers))}`",
        help=next(known, "is this checkpoint of this architecture? then its names need an adapter of their own"),
        parameter=parameters_of(plan, readers, readers),
        sources=(*readers, *unread),
        **sites_of(plan, readers, readers) | stored(plan, unread),
    )
    yield Cause(finding, frozenset({*readers, *unread}))
