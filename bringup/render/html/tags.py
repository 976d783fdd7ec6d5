"""HTML from nested calls. Text is escaped unless it is Html already: no name in a checkpoint can become markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from bringup.render.visible import visible

_VOID = frozenset({"br", "meta"})


class Html(str):
    """Markup, which `tag` does not escape."""

    __slots__ = ()


Inside = Html | str | int | None | Iterable["Inside"]


def text(value: Inside) -> Html:
    """Escapes a string and joins nested sequences; None is nothing."""
    if isinstance(value, Html):
        return value
    if isinstance(value, str):
        return Html(escape(visible(value)))
    if value is None or isinstance(value, int):
        return Html("" if value is None else value)
    return Html("".join(map(text, value)))


def tag(name: str, /, *inside: Inside, **attributes: str | float | None) -> Html:
    """An element. `class_` is written `class`, `aria_label` `aria-label`; "" has no value, None is omitted."""
    words = [name, *(_attribute(key, value) for key, value in attributes.items() if value is not None)]
    opened = f"<{' '.join(words)}>"
    return Html(opened if name in _VOID else f"{opened}{text(inside)}</{name}>")


def code(name: str, **attributes: str | float | None) -> Html:
    """A name in a monospaced font."""
    return tag("code", name, **attributes)


def _attribute(key: str, value: str | float) -> str:
    key = key.rstrip("_").replace("_", "-")
    written = value if isinstance(value, str) else f"{value:.6g}"
    return f'{key}="{text(written)}"' if written else key
