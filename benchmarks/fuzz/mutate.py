"""Mutations of a valid file: of its bytes, and of a JSON document in it. All draw from one seeded `Random`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

# Lengths, counts and offsets that readers get wrong: the ends of every width, and what overflows when multiplied.
INTERESTING = sorted(
    {(1 << bits) + d for bits in (0, 7, 8, 15, 16, 24, 31, 32, 53, 60, 62, 63, 64) for d in (-1, 0, 1)}
    | {0, 2, 3, 10, 100, 1000, 99_999_999, 100_000_000, 100_000_001}
)
VALUES: tuple[Any, ...] = (
    None, True, False, *INTERESTING, *(-n for n in INTERESTING), 0.0, -0.0, 0.5, 1.0, 1e308, 1e-308,
    float("nan"), float("inf"), -float("inf"), "", "0", "-1", "nan", "../x", "/etc/passwd", "a\0b", "a\nb", "\x1b[2J",
    "\ud800", "é" * 3, "x" * 300, [], {}, [[]], [{}], [None], [0], [-1], {"": None}, [1, "a", None], {"a": {"b": []}},
)  # fmt: skip

Mutation = Callable[[Random, Sequence[bytes]], bytes]


def mutated(random: Random, seeds: Sequence[bytes], tokens: Sequence[bytes] = ()) -> bytes:
    """One seed with one to six byte mutations; `tokens` are words of the format to strew in. One in 50 is random."""
    if random.random() < 0.02:
        return random.randbytes(random.randrange(200))
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        random.choice(_WAYS)(random, data, seeds)
        if tokens and random.random() < 0.3:
            at = random.randint(0, len(data))
            data[at : at + random.choice((0, 0, 1, 8))] = random.choice(tokens)
    return bytes(data)


def _flip(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _byte(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x22, 0x2D, 0x30, 0x5C, 0x7B, 0x7D, 0x7F, 0x80, 0xFF))


def _number(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """An interesting number over 1, 2, 4 or 8 bytes, little-endian, often where length fields stand."""
    width = random.choice((1, 2, 4, 8, 8))
    if len(data) >= width:
        last = len(data) - width
        at = min(last, random.choice((0, 4, 8, 12, 16, 24))) if random.random() < 0.3 else random.randint(0, last)
        value = random.choice((*INTERESTING, len(data), len(data) - 8, len(data) - 9))
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def _digits(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """An interesting number in the place of one that is written out."""
    spots = [at for at, byte in enumerate(data) if 0x30 <= byte <= 0x39]
    if spots:
        start = end = random.choice(spots)
        while end < len(data) and 0x30 <= data[end] <= 0x39:
            end += 1
        data[start:end] = str(random.choice((1, -1)) * random.choice(INTERESTING)).encode()


def _splice(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = random.choice(seeds)
    cut = random.randint(0, len(other))
    data[random.randint(0, len(data)) :] = other[cut:]


def _truncate(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    del data[random.randint(0, len(data)) :]


def _remove(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = random.randint(0, len(data))
    del data[at : at + random.choice((1, 1, 2, 4, 8, 32))]


def _double(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """A chunk once more, or many times."""
    at = random.randint(0, len(data))
    chunk = data[at : at + random.choice((1, 2, 4, 8, 16, 64))]
    data[at:at] = chunk * random.choice((1, 1, 2, 100))


def _extend(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = random.choice((0, len(data), random.randint(0, len(data))))
    data[at:at] = random.randbytes(random.choice((1, 4, 8, 64)))


_WAYS = (_flip, _flip, _byte, _number, _number, _digits, _digits, _splice, _truncate, _remove, _double, _extend)


def mutated_json(random: Random, document: Any) -> Any:
    """A JSON value with one to four of its parts replaced, removed, swapped, renamed, nested or doubled."""
    box = [_copy(document)]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        spots = list(_spots(box))
        holder, key = random.choice(spots)
        value = holder[key]
        way = random.randrange(8)
        if way < 4:
            holder[key] = _copy(random.choice(VALUES))
        elif way == 4 and type(value) is int and abs(value) < 1 << 64:
            holder[key] = random.choice((value + 1, value - 1, value * 2, -value, float(value), str(value)))
        elif way == 5 and holder is not box:
            del holder[key]
        elif way == 6:
            other, place = random.choice(spots)
            holder[key] = _copy(other[place])
        elif isinstance(holder, dict):
            known = [k for h, k in spots if isinstance(h, dict)]
            name = random.choice([*known, "", "\x1b[31m", "a\0", "é", f"{key}x", "x" * 100])
            holder[name] = value if random.random() < 0.5 else holder.pop(key)
        else:
            holder[key] = random.choice(([value], {"a": value}, [value] * 3))
    return box[0]


def document_of(data: bytes) -> Any:
    """The JSON value of an input; None if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def mutated_part(random: Random, seeds: Sequence[bytes], tokens: Sequence[bytes], parts: Sequence[str]) -> bytes:
    """One seed, a JSON object, of which one of `parts` is mutated; bytes now and then."""
    document = document_of(random.choice(seeds))
    if not isinstance(document, dict) or random.random() < 0.1:
        return mutated(random, seeds, tokens)
    whole = cast("dict[str, Any]", document)
    part = random.choice(parts)
    text = written(random, mutated_json(random, {part: whole.get(part)}))
    try:
        changed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(whole | changed if isinstance(changed, dict) else whole).encode()


def written(random: Random, document: Any) -> bytes:
    """JSON text of a value; now and then with a repeated key, or in an encoding or form that is not JSON."""
    text = json.dumps(document, ensure_ascii=random.random() < 0.5)
    kind = random.randrange(40)
    if kind == 0 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1] + ", " + text[1:]
    if kind == 1:
        text = text.replace("1", "1" * random.choice((50, 5000)), 1)
    if kind == 2:
        text = "[" * random.choice((10, 3000, 200_000)) + text
    return text.encode("utf-16" if kind == 3 else "utf-8", "surrogatepass")


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a JSON value, as its holder and key."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        holder = todo.pop()
        keys = list(cast("dict[str, Any]", holder)) if isinstance(holder, dict) else list(range(len(holder)))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                todo.append(holder[key])
    return found


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in cast("dict[str, Any]", value).items()}
    return [_copy(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value
