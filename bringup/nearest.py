"""Suggestions for misspelt names: the known names with the smallest edit distance.

An edit inserts, deletes or replaces a letter, or swaps two: the restricted Damerau-Levenshtein distance
(R. A. Wagner and R. Lowrance, An extension of the string-to-string correction problem, J. ACM 22, 1975).
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 3  # edits in one name; in a short one, a third of its letters
SHORTEST_START = 3  # letters of a prefix that stands for a name


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The one or two known names that are closest to `name`; [] if none is close.

    A prefix of a name, and a dotted name without its first sections, match the complete name. Case is ignored.
    """
    best: list[str] = []
    limit, lowered = max(1, min(MOST, len(name) // 3)), name.lower()
    for other in dict.fromkeys(known):
        found = slips(lowered, other.lower(), limit)
        if found is None or found >= min(len(lowered), len(other)):  # no letter in common
            continue
        if found < limit:
            best, limit = [], found
        best.append(other)
    return best[:2] if best else _longer(lowered, known)


def _longer(name: str, known: Iterable[str]) -> list[str]:
    """The names that begin with the prefix, or end with it after a dot, if there are one or two."""
    if len(name) < SHORTEST_START:
        return []
    longer = [other for other in dict.fromkeys(known) if f".{other.lower()}".endswith(f".{name}")]
    longer = longer or [other for other in dict.fromkeys(known) if other.lower().startswith(name)]
    return longer if len(longer) <= 2 else []


def slips(one: str, other: str, limit: int) -> int | None:
    """The edit distance of two names; None if it exceeds `limit`, or if a complete section differs."""
    if abs(len(one) - len(other)) > limit:
        return None
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
        end += 1
    a, b = one[start : len(one) - end], other[start : len(other) - end]
    found = _distance(a, b, limit)
    if found > limit or (found == MOST and found == len(a) == len(b)):  # Llama is not a misspelt Gemma
        return None
    return found


def _distance(a: str, b: str, limit: int) -> int:
    """The distance, row by row, with three rows in memory (the oldest is for swaps); or a number above `limit`."""
    far = limit + 1
    above, row = [far] * (len(b) + 1), list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, above, row = above, row, [far] * (len(b) + 1)
        row[0] = i
        for j in range(max(1, i - limit), min(len(b), i + limit) + 1):  # further from the diagonal exceeds the limit
            steps = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != b[j - 1]))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == b[j - 1]:
                steps = min(steps, before[j - 2] + 1)
            row[j] = steps
        if min(row) > limit:
            return far
    return row[-1]
