"""Reading a config.json so that no key is overlooked.

Each key is read by the family, listed as a key that does not affect the result, or reported: a scale, window or rope
type that the graph does not implement is never ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, TypeVar, cast

from bringup.diagnostics import Diagnostic, Severity, did_you_mean
from bringup.graphs.config.key_types import MOST, converted, mistyped
from bringup.graphs.config.tracked import Tracked
from bringup.graphs.config.unread_keys import unread_keys
from bringup.shown import shown

T = TypeVar("T", int, float, str, bool)

MOST_ELEMENTS = 1 << 31  # a size; the largest vocabularies have 2^18, the longest contexts 10^7
MOST_LAYERS = 1000  # each layer is an object; the deepest published models have 126
MOST_EXPERTS = 1 << 17  # of all layers: each has its own tensors; Kimi K2 has 23,424
ALLOW = "change the graph, or if the key does not affect the result: --allow-config {}=REASON"
PUBLISHED = "correct `{}`, or use the config.json that was published with the weights: --config FILE"


class Fields:
    """The keys of one object in a config.json. It records which keys were read, and the findings.

    `at` is the path of the object in messages, dotted, with a dot at its end: `rope_parameters.`; "" for the file's
    own. `elsewhere` has the paths of keys that are not in that object.
    """

    def __init__(
        self, raw: Mapping[str, Any], family: str, allow: Mapping[str, str] | None = None, *, at: str = ""
    ) -> None:
        self.raw = raw
        self.at = at
        self.elsewhere: dict[str, str] = {}
        self.family = family
        self.allowed = dict(allow or {})
        self.read: set[str] = set()
        self.findings: list[Diagnostic] = []
        self.doubtful = False  # whether an integer is invalid: the values are then not compared with each other

    @property
    def has_errors(self) -> bool:
        """Whether an error was found: some of the values read are then stand-ins."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    def path(self, key: str) -> str:
        """The path of a key from the top of the file."""
        return self.elsewhere.get(key, self.at + key)

    def _in_file(self, text: str, key: str) -> str:
        """A text with the paths of the keys that it names in backquotes; `key` is absent, maybe."""
        if not (self.at or self.elsewhere):
            return text
        names = {key, *self.raw, *self.elsewhere}
        return re.sub(r"`(\w+)`", lambda found: f"`{self.path(found[1]) if found[1] in names else found[1]}`", text)

    def valid(self, *keys: str) -> bool:
        """Whether no error was found for these keys: their values are those of the config."""
        return all(f.severity is not Severity.ERROR or f.parameter not in keys for f in self.findings)

    def get(self, key: str, kind: type[T], default: T | None = None, *, null: T | None = None) -> T:
        """The value of a key: `default` if it is absent, `null` if it is null.

        Without these arguments the key is required and must not be null: transformers 5.23 rejects null if the
        annotation in its configuration class does not permit None; otherwise None is a value of its own and not the
        default. A missing value or one of another type is a finding; the result is then a stand-in.
        """
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None and (instead := null if key in self.raw else default) is not None:
            return instead
        if type(value) is int and abs(value) >= MOST:
            self.error("BU124", f"config key `{key}` has {len(str(value))} digits, which is too large", key)
            self.doubtful |= kind is int
            return kind(1)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        endless = isinstance(value, float) and not isfinite(value)
        if isinstance(value, kind) and not endless and (kind is not int or not isinstance(value, bool)):
            return value
        message = f"config key `{key}` {self.state(key)}; {self.family} needs a value of type {kind.__name__}"
        drop = value is None and key in self.raw and default is not None
        help = f"null is not the default: remove the key to use the default, {shown(default)}" if drop else ""
        meaning = converted(value, kind)
        unknown = kind is int or (kind is bool and default is None)  # else a flag has its default while planning
        self.doubtful |= kind is int
        self.error("BU121", message, key, help, stops="size" if meaning is None and unknown else "")
        return meaning if meaning is not None else default if default is not None else kind(1)

    def size(
        self,
        key: str,
        default: int | None = None,
        *,
        null: int | None = None,
        minimum: int = 1,
        maximum: int = MOST_ELEMENTS,
    ) -> int:
        """An integer from `minimum` (1) to `maximum`, such as a number of heads or channels."""
        return self._number(key, default, maximum, "size", null=null, minimum=minimum)

    def _number(
        self, key: str, default: int | None, maximum: int, stops: str, *, null: int | None = None, minimum: int = 1
    ) -> int:
        count = len(self.findings)
        if default is not None and any(isinstance(value, Tracked) for value in self.raw.values()):
            default = default if isinstance(default, Tracked) else Tracked.of(default, (key,))
        value = self.get(key, int, default, null=null)
        if not minimum <= value <= maximum:
            if value < minimum:
                self.error("BU121", f"config key `{key}` is {value}; {self.family} needs at least {minimum}", key)
            else:
                self.error("BU124", f"config key `{key}` is {value}; more than {maximum} is not possible", key)
            value, self.doubtful = 1, True
            self.findings[count:] = [replace(f, stops=stops) for f in self.findings[count:]]
        self.findings[count:] = [replace(f, stops=f.stops and stops) for f in self.findings[count:]]
        return value

    def layers(self, key: str) -> int:
        """The number of layers, at most MOST_LAYERS; each becomes an object."""
        return self._number(key, None, MOST_LAYERS, "layers")

    def experts(self, key: str, default: int | None, *, minimum: int = 1) -> int:
        """The number of experts in each layer, at most MOST_EXPERTS in all layers together."""
        layers: object = self.raw.get("num_hidden_layers")
        each = layers if isinstance(layers, int) and 0 < layers <= MOST_LAYERS else 1
        maximum = MOST_EXPERTS // each
        value = self._number(key, default, maximum, "experts", minimum=minimum)
        return max(value, maximum if self.stopped else 0)  # one mistake, one finding

    def positive(self, key: str, default: float | None = None, *, null: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key, float, default, null=null)
        if value > 0:
            return value
        message = f"config key `{key}` is {value:g}; {self.family} needs a number above 0"
        self.error("BU121", message, key, stops="")
        return 1.0

    def optional(self, key: str, kind: type[T]) -> T | None:
        """The value of a key that may be absent or null."""
        self.read.add(key)
        return None if self.raw.get(key) is None else self.get(key, kind)

    def strings(self, key: str) -> list[str] | None:
        """A list of strings that may be absent or null."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None or (isinstance(value, list) and all(isinstance(v, str) for v in cast(list[Any], value))):
            return cast("list[str] | None", value)
        value = cast("object", value)
        message = f"config key `{key}` is {shown(value)}; {self.family} needs a list of strings"
        self.error("BU121", message, key, stops="")
        return None

    def numbers(self, key: str, absent: tuple[float, ...] = (), *, zeros: bool = False) -> tuple[float, ...]:
        """A list of numbers above 0, or from 0 on with `zeros`; `absent` if the key is absent or null."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None and absent:
            return absent
        items = cast(list[Any], value) if isinstance(value, list) else []
        if items and all(type(v) in (int, float) and isfinite(v) and (v > 0 or (zeros and v == 0)) for v in items):
            return tuple(map(float, items))
        least = "from 0 on" if zeros else "above 0"
        message = f"config key `{key}` {self.state(key)}; {self.family} needs a list of numbers {least}"
        self.error("BU121", message, key, stops="")
        return ()

    def indices(self, key: str) -> tuple[int, ...]:
        """A list of integers; empty if the key is absent or null."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None or (isinstance(value, list) and all(type(v) is int for v in cast(list[Any], value))):
            return tuple(cast("list[int]", value or []))
        message = f"config key `{key}` is {shown(cast('object', value))}; {self.family} needs a list of integers"
        self.error("BU121", message, key)
        return ()

    def group(self, key: str, *, stops: str | None = None) -> dict[str, Any]:
        """The object under a key; empty if the key is absent or null. `stops` as in `error`."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is not None and not isinstance(value, dict):
            self.error(
                "BU121", f"config key `{key}` is {shown(value)}; {self.family} needs an object", key, stops=stops
            )
            return {}
        return cast("dict[str, Any]", value or {})

    def inner(self, key: str) -> Fields:
        """The keys of the object under a key, with the allowances of these keys."""
        keys = self.group(key)
        allowed = {each: self.allowed.pop(each) for each in keys.keys() & self.allowed}
        return Fields(keys, self.family, allowed, at=f"{self.at}{key}.")

    def only(self, key: str, *allowed: Any) -> None:
        """Reports values of a key that the graph does not implement; the first allowed value is the default.

        Null is allowed only if it is listed. Types are compared as well: 0 is not false, 1 is not true.
        """
        self.read.add(key)
        value = self.raw.get(key, allowed[0])
        fits = key not in self.raw or any(value == known and _equal_in_json(value, known) for known in allowed)
        numbers = any(isinstance(known, int) and not isinstance(known, bool) for known in allowed)
        unknown = self.stopped and numbers  # the allowed values are computed from stand-ins
        if not fits and key not in self.allowed and not unknown:
            message = f"config sets `{key}` = {shown(value)}; the {self.family} graph implements {_listed(allowed)}"
            self.error("BU122", message, key, "" if self.at else ALLOW.format(key))

    def choice(self, key: str, known: Collection[str], default: str) -> str:
        """A key whose value selects an implementation of the graph; --allow-config does not apply to it."""
        value = self.get(key, str, default)
        if value in known:
            return value
        message = f"config sets `{key}` = {shown(value)}; the {self.family} graph implements {_listed(known)}"
        alike = [each for each in known if re.findall(r"\d", each) == re.findall(r"\d", value)]  # relu2 is not relu
        self.error("BU122", message, key, did_you_mean(value, alike))
        return default

    @property
    def stopped(self) -> bool:
        """Whether a size that planning needs is unknown: some values of the config are then stand-ins."""
        return any(finding.stops for finding in self.findings)

    def error(
        self,
        code: str,
        message: str,
        key: str,
        help: str = "",
        *,
        severity: Severity = Severity.ERROR,
        stops: str | None = None,
    ) -> None:
        """Adds a finding for a key, unless it has one: one mistake is one finding, which then stops what either would.

        `stops` as in `Diagnostic`; if omitted, a BU121 or BU124 leaves a size unknown, and other codes stop nothing.
        """
        help = help or (PUBLISHED.format(key) if code == "BU121" else "")
        stops = ("size" if code in ("BU121", "BU124") else "") if stops is None else stops
        self._add(code, self._in_file(message, key), key, self._in_file(help, key), severity, stops)

    def _add(self, code: str, message: str, key: str, help: str, severity: Severity, stops: str) -> None:
        any_severity = severity is not Severity.ERROR
        for index, found in enumerate(self.findings):
            if found.parameter == key and (any_severity or found.severity is Severity.ERROR):
                self.findings[index] = replace(found, stops=found.stops or stops)
                break
        else:
            finding = Diagnostic(code=code, message=message, parameter=key, help=help, severity=severity, stops=stops)
            self.findings.append(replace(finding, config_key=self.path(key)))

    def overridden(self, key: str, value: Any, by: str, used: Any) -> None:
        """Warns that two keys contradict each other, and that the one that transformers obeys, `by`, is used.

        `by` is its path in the file.
        """
        message = f"config sets `{self.path(key)}` = {shown(value)} and `{by}` = {shown(used)}; the latter is used"
        help = f"transformers does not read `{self.path(key)}` here either: remove the wrong one"
        self._add("BU151", message, key, help, Severity.WARNING, "")

    def ignored(self, key: str, value: Any, differs: str) -> None:
        """Warns of a key that other code reads, but not transformers, whose logits are the reference."""
        message = f"config sets `{key}` = {shown(value)}, which transformers does not read; neither does bringup"
        self.error("BU151", message, key, f"{differs}: is the checkpoint for that?", severity=Severity.WARNING)

    def state(self, key: str) -> str:
        """The state of a key (absent, null, its value), as part of a message."""
        return f"is {'null' if self.raw[key] is None else shown(self.raw[key])}" if key in self.raw else "is missing"

    def done(self) -> list[Diagnostic]:
        """Ends the reading: every finding, and those on keys that were not read, or not by a family."""
        excused = {*self.allowed, *(finding.parameter for finding in self.findings)}
        found = [*mistyped(self.raw, excused), *unread_keys(self.raw, self.read, self.allowed, self.family)]
        for f in found:
            text, key = self._in_file(f.message, f.parameter), self.path(f.parameter)
            self.findings.append(replace(f, message=text, config_key=key))
        return self.findings


def _equal_in_json(value: Any, known: Any) -> bool:
    """Whether two equal values are also equal in JSON: in Python, true equals 1."""
    return isinstance(value, bool) == isinstance(known, bool)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(repr, values))
