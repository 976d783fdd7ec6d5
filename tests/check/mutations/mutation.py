"""A mutation: one mistake of a user, and the expected report of bringup.

`Trial` contains what is mutated: a valid checkpoint, the source of the adapter and of the graph, and the options of the
command. `docs/faults.md` is generated from the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.check.drafts import ROOT, Draft, write_draft

# What users of loaders suffer, from threads of the projects named: shares the ranks of the study behind the design.
PAINS = {
    1: "weights missing, silently",
    2: "a wrong layout of the right shape",
    3: "quantisation scales: names and representation",
    4: "a LoRA that loads and does nothing",
    5: "tied embeddings",
    6: "one KeyError at a time",
    7: "extra layers (MTP, draft)",
    8: "experts that take twice the memory",
    9: "the same bytes read twice",
    10: "what is saved back is not what was loaded",
    11: "tensor parallelism that fails late",
    12: "name tables that drift apart",
    13: "index and files that disagree",
    14: "a loader by hand for every model",
}

REGISTER = """
from bringup.graphs.family import Family

family = Family(name="{name}", graph={graph}, config={graph}Config, adapter="bringup.adapters.{name}:adapter")
"""


@dataclass
class Trial:
    """A checkpoint in the making, and what bringup is given with it. Each method makes a mistake."""

    draft: Draft
    shards: int = 1
    options: list[str] = field(default_factory=list)
    later: list[Callable[[Path], None]] = field(default_factory=list)
    adapter: str = ""  # source, where it is not the family's own
    graph: str = ""
    model: str = ""  # the family that the user names

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return self.draft.tensors

    @property
    def config(self) -> dict[str, Any]:
        return self.draft.config

    def rename(self, new: Callable[[str], str]) -> None:
        self.draft.tensors = {new(name): array for name, array in self.tensors.items()}

    def change(self, name: str, new: Callable[[np.ndarray], np.ndarray]) -> None:
        self.tensors[name] = new(self.tensors[name])

    def edit_adapter(self, old: str, new: str) -> None:
        source = self.adapter or (ROOT / "adapters" / f"{self.draft.family.rules.stem}.py").read_text("utf-8")
        self.adapter = _edited(source, old, new)

    def edit_graph(self, old: str, new: str) -> None:
        source = self.graph or self._graph_source()
        self.graph = _edited(source, old, new)

    def on_disk(self, change: Callable[[Path], None]) -> None:
        """A change of the folder, after it is written."""
        self.later.append(change)

    def write(self, folder: Path) -> Case:
        """The files, and how bringup is called on them."""
        write_draft(self.draft, folder, self.shards)
        for change in self.later:
            change(folder)
        files = {"model.py": self.graph, "adapter.py": self.adapter}
        at = {name: folder.parent / f"{folder.name}-{name}" for name, source in files.items() if source}
        for name, path in at.items():
            path.write_text(files[name], "utf-8")
        model = at.get("model.py") or self.model or self.draft.family.model
        return Case(folder, str(model) if model else None, at.get("adapter.py"), tuple(self.options))

    def _graph_source(self) -> str:
        """The family's graph as a user's model file."""
        name = self.draft.family.rules.stem
        graph = {"gpt2": "GPT2", "llama": "Llama"}[name]
        source = (ROOT / "graphs" / f"{name}.py").read_text("utf-8")
        return source + REGISTER.format(name=name, graph=graph)


@dataclass(frozen=True)
class Case:
    """A spoilt folder, and what bringup is given: MODEL, an adapter, options of `check`."""

    folder: Path
    model: str | None = None
    adapter: Path | None = None
    options: tuple[str, ...] = ()

    def words(self, command: str = "check") -> list[str]:
        """The command line, without `bringup`."""
        rules = ["--adapter", str(self.adapter)] if self.adapter else []
        return [command, *([self.model] if self.model else []), "--checkpoint", str(self.folder), *rules, *self.options]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One mistake. `code` and `names` are bringup's answer, given in `phase`; `names` is the parameter or module.

    `reads` are keys of the config, other than those changed, that decide whether there is a mistake at all.

    `seen` is where users met it. `convert` makes a rule's mistake in the tensors, for tools that have no rules;
    `in_max` makes a graph's mistake in that of benchmarks/faults_max_graphs.py: texts, and what stands in their place.
    """

    key: str
    title: str
    pain: int
    seen: str
    base: str
    spoil: Callable[[Trial], None]
    code: str
    names: str
    phase: str = "check"  # or "compile", "verify", "export"
    warns: bool = False  # the work goes on
    convert: Callable[[Trial], None] | None = None
    in_max: tuple[tuple[str, str], ...] = ()
    reads: tuple[str, ...] = ()


def _edited(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, f"{source.count(old)} times in the source: {old}"
    return source.replace(old, new)
