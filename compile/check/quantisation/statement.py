"""A quantisation as its file states it: the file, the keys and the fix that messages name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from bringup.adapters.checkpoints.config_places import CONFIG
from bringup.adapters.planning.quantization import GROUPS, WORDS, quantization_path, quantization_words
from bringup.shown import shown

if TYPE_CHECKING:
    from bringup.compile.job import Job

# By method: the key with the list of modules that its converter does not quantise.
LISTS: Mapping[str, str] = {
    "compressed-tensors": "ignore", "modelopt": "ignore", "quark": "exclude", "bitsandbytes": "llm_int8_skip_modules",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    """`file` is the name of the file that states the quantisation, or in which it would be stated.

    `key` is the dotted key of its group in that file; "" if the file has nothing else: a quantiser's own. `words` are
    the keys of the group.
    """

    file: str
    key: str
    words: Mapping[str, object]

    @property
    def sets(self) -> str:
        """The file with the keys that describe the weights, as the subject and the verb of a message."""
        inner = self.words.get("quantization")  # of ModelOpt's own file
        stated = {**self.words, **(cast("Mapping[str, object]", inner) if isinstance(inner, Mapping) else {})}
        keys = [key for key in WORDS if key in stated]
        if not self.key and len(keys) > 1:
            keys.remove("quant_method")  # follows from the name of the file, which has no such key
        return f"{self.file} sets {', '.join(f'`{key}` = {shown(stated[key])}' for key in keys) or self.group}"

    @property
    def group(self) -> str:
        """The keys of the quantisation in a message: their group, or the file that has only these."""
        return f"`{self.key}`" if self.key else self.file

    @property
    def removal(self) -> str:
        """How to remove the quantisation."""
        return f"remove `{self.key}` from {self.file}" if self.key else f"remove {self.file}"

    def replacement(self, words: Mapping[str, object]) -> str:
        """How to state another quantisation: in config.json, which precedes the file of a quantiser."""
        stated = f'"{GROUPS[0]}": {json.dumps(words)}'
        return f"set it in {self.file}: {stated}" if self.key else f"{self.removal}, and set in {CONFIG}: {stated}"

    @property
    def modules(self) -> str:
        """The list of unquantised modules, as the format names it."""
        method = str(self.words.get("quant_method", ""))
        key = LISTS.get(method.partition("_")[0] if method.startswith("modelopt") else method, "modules_to_not_convert")
        key = "exclude_modules" if not self.key and key == "ignore" else key
        return f"`{key}` of {self.group}"


UNSTATED = Statement(CONFIG, GROUPS[0], {})


def statement(job: Job) -> Statement:
    """The statement of a job's config; without any, an empty one at the place where it would be read."""
    path = quantization_path(job.config)
    own = path and path[0] in job.places.others
    return Statement(job.places.of(path[0]), "" if own else ".".join(path), quantization_words(job.config))
