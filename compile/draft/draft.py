"""A draft of all files of a family, from a checkpoint: see `draft`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup import userfiles
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.model_config import unreadable_config
from bringup.compile.draft.facts.facts import Facts, facts_of
from bringup.compile.draft.facts.hints import hints_of
from bringup.compile.draft.facts.questions import Question
from bringup.compile.draft.facts.readings import prove, slots_of, without_rule
from bringup.compile.draft.facts.words import EXPERT_MLP, PARAMETERS, PLAIN_MLP
from bringup.compile.draft.text.adapter import adapter_text
from bringup.compile.draft.text.graph import graph_text
from bringup.compile.draft.text.other import IN_GGUF, dialect_text, family_text, test_text
from bringup.diagnostics import BringupError, fail
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import architectures
from bringup.graphs.core.options import GraphOptions, build_graph
from bringup.graphs.core.signature import Signature
from bringup.graphs.registry import by_architecture
from bringup.system.atomic import write_file
from bringup.system.new_files import new_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """`files` are texts by name. `rules` counts the proved patterns, `open` the tensors without a rule.

    `questions` are those that names and shapes leave open, `hints` the sources of answers; `absent` states which
    package may answer more, '' if none does. `served` is the built-in family that has the architecture already, '' for
    none.
    """

    name: str
    files: Mapping[str, str]
    questions: list[Question]
    hints: list[str]
    absent: str
    rules: int
    open: int
    served: str


def draft(checkpoint: Checkpoint, name: str | None = None) -> Draft:
    """Drafts graph, adapter, dialect and test of a decoder from its config.json and its headers.

    Rules are those that the checker proves: on all layers, each element of their tensors read once. If several are
    proved, the first is written, and the others are a question. Hints are read from transformers and vLLM if they are
    installed, and from the code of the checkpoint. `name` is the family's; default: the config's model_type. Raises
    BU046 if sizes or layers are not found, BU127 without a config.json, BU202 and BU233 if it is not readable.
    """
    raw = checkpoint.config
    if unreadable := unreadable_config(checkpoint.findings):
        raise BringupError(*unreadable)
    if not raw:
        raise fail("BU127", f"`{checkpoint.source}` has no config.json", help="put config.json next to the weights")
    known = architectures(raw)
    architecture = known[0] if known else ""
    family = name or _family_name(raw, architecture)
    facts = facts_of(raw, checkpoint.headers, hints_of(raw, architecture, _folder(checkpoint)), family, architecture)
    config, signature = _built(facts, checkpoint, graph_text(facts))
    read = frozenset(_read(type(config), raw, family))
    facts.questions.clear()  # the second text asks about keys as well
    graph = graph_text(facts, read)
    slots = list(slots_of(facts))
    prove(slots, facts, signature, config, checkpoint.headers)
    files = {
        f"{family}.py": family_text(facts),
        f"{family}_graph.py": graph,
        f"{family}_adapter.py": adapter_text(facts, slots, without_rule(slots, facts, signature, config)),
        f"{family}_dialect.py": dialect_text(facts, _in_gguf(facts)),
        f"test_{family}.py": test_text(facts, _absolute(checkpoint.source)),
    }
    return Draft(
        name=family, files=files, questions=facts.questions, hints=facts.hints.sources,
        absent=facts.hints.absent if facts.questions else "",
        rules=sum(len(slot.proved[0].rules) for slot in slots if slot.proved),
        open=sum(len(slot.tensors.names) for slot in slots if not slot.proved)
        + sum(len(tensors.names) for tensors in facts.roles.rest),
        served=_served(architecture),
    )  # fmt: skip


def write_draft(found: Draft, out: Path) -> None:
    """Writes the files to a folder that may exist: all, or after an error none. Raises BU011 if one of them exists,
    BU901 and BU902."""
    if there := [name for name in found.files if (out / name).exists()]:
        raise fail(
            "BU011", f"`{out / there[0]}` exists", help="choose another folder with -o: a draft replaces nothing"
        )
    with new_files(out) as folder:
        for name, text in found.files.items():
            write_file(folder / name, text.encode())


def _family_name(raw: Mapping[str, Any], architecture: str) -> str:
    named = raw.get("model_type")
    words = named if isinstance(named, str) and named else re.sub(r"(For|Model|LMHead).*", "", architecture)
    return re.sub(r"\W+", "_", words.lower(), flags=re.ASCII).strip("_") or "drafted"


def _folder(checkpoint: Checkpoint) -> Path:
    path = Path(checkpoint.source)
    return path.parent if path.is_file() else path


def _absolute(source: str) -> str:
    return str(Path(source).resolve()) if Path(source).exists() else source


def _served(architecture: str) -> str:
    try:
        return by_architecture([architecture]).name if architecture else ""
    except BringupError:
        return ""


def _built(facts: Facts, checkpoint: Checkpoint, text: str) -> tuple[Any, Signature]:
    """The config and the signature of the graph in a text, which is run as a user's file is."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{facts.name}_graph.py"
        file.write_text(text, "utf-8")
        module = userfiles.run(file)
        settings = getattr(module, f"{facts.title}Config")
        config, findings = settings.read(checkpoint.config)
        present = [key for key, value in checkpoint.config.items() if value is not None]
        wrong = [each for each in findings if each.stops or (each.code == "BU121" and each.parameter in present)]
        if wrong:
            raise BringupError(*wrong)
        dtypes = {info.dtype for info in checkpoint.headers.values()}
        dtype = next((name for name in ("bfloat16", "float16", "float32") if name in dtypes), "float32")
        return config, build_graph(getattr(module, facts.title), config, dtype, GraphOptions()).signature()


def _read(settings: Any, raw: Mapping[str, Any], family: str) -> set[str]:
    """The keys that a drafted config class reads."""
    fields = Fields(raw, family)
    settings.from_fields(fields)
    return fields.read


def _in_gguf(facts: Facts) -> dict[str, tuple[str, bool]]:
    """Patterns of weights that llama.cpp has a name for: their role, and whether there is a bias."""
    patterns: dict[str, tuple[str, bool]] = {}
    fused = {"qkv": "qkv", "gate_up": ("gate", "up")}
    for key, _ in facts.roles.found:
        kind = facts.dense if key.startswith("dense_") else facts.mlp
        named = key.removeprefix("dense_")
        for role in fused.get(named, (named,)):
            if role not in IN_GGUF:
                continue
            names = {"experts": EXPERT_MLP, "plain": PLAIN_MLP}.get(kind, PARAMETERS)
            names = names if role in names else PARAMETERS
            bias = facts.roles.has(key, "bias") or facts.roles.has(role, "bias")
            bias |= role in "qkv" and facts.roles.has("qkv", "bias")
            patterns[names[role].replace("{p}", "weight")] = role, bias
    return patterns
