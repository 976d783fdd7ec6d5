"""A class or a function of transformers' code, as far as a config runs it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Part:
    """A class or a function: the statements that run for a config, in order, the expressions of attributes, and by
    attribute the test of a layer's number by which `__init__` chooses between two. `every`: all statements,
    with `else` and `end` of each test. `reached`: the assignments of `__init__` that the config can reach.
    `arguments`: those of `__init__`, with their defaults. `functions` are all, `keys` the config keys of attributes,
    `known` the values
    of `self.NAME`, and `of_any_config` the attributes without regard to the config."""

    name: str
    statements: list[str] = field(default_factory=list[str])
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    choices: dict[str, str] = field(default_factory=dict[str, str])
    every: list[str] = field(default_factory=list[str])
    reached: list[str] = field(default_factory=list[str])
    arguments: str = ""
    functions: list[ast.FunctionDef] = field(default_factory=list[ast.FunctionDef])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    known: dict[str, Any] = field(default_factory=dict[str, Any])
    of_any_config: dict[str, str] = field(default_factory=dict[str, str])
