"""`bringup cache`: the entries of the cache, and the reason why one was not reused."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from bringup.diagnostics import fail
from bringup.render.words import age, plural, seconds, size, table

if TYPE_CHECKING:
    from bringup.compile.cache.store import Entry, Store


@click.group("cache")
def command() -> None:
    """Show, explain or remove cached results of compiles: traced stages, compiled modules, paths of weights."""


@command.command("ls")
def ls() -> None:
    """List the entries, the most recently used first."""
    store = _store()
    entries = list(store.entries())
    rows = [
        (entry.key[:12], entry.kind, entry.what, size(entry.nbytes), f"{seconds(entry.seconds)} to make", _age(entry))
        for entry in entries
    ]
    if rows:
        print(table(rows))
    total = size(sum(entry.nbytes for entry in entries))
    print(f"{plural(len(entries), 'entry', 'entries')}, {total}, in {store.root}", file=sys.stderr)


@command.command("why", short_help="Print the inputs of an entry, and which of them changed.")
@click.argument("entry", metavar="KEY|NAME")
def why(entry: str) -> None:
    """Print the inputs of an entry, and the changes since the previous one with that name."""
    named = [found for found in _store().entries() if found.key.startswith(entry) or entry in found.what]
    if not named:
        raise fail("BU041", f"the cache has no entry `{entry}`", help="`bringup cache ls` lists keys and names")
    latest = max(named, key=lambda found: found.created_at)
    before = [
        found for found in _store().entries() if found.what == latest.what and found.created_at < latest.created_at
    ]
    print(f"{latest.what}  {latest.key[:12]}  created {age(time.time() - latest.created_at)} ago")
    if not before:
        print("the first of that name; its inputs:")
        print(table([("", *pair) for pair in sorted(latest.inputs.items())]))
        return
    previous = max(before, key=lambda found: found.created_at)
    print(f"not reused: unlike {previous.key[:12]}, created {age(time.time() - previous.created_at)} ago,")
    names = sorted({*previous.inputs, *latest.inputs})
    values = [(name, previous.inputs.get(name, "absent"), latest.inputs.get(name, "absent")) for name in names]
    print(table([("", name, was, "→", now) for name, was, now in values if was != now]))


@command.command("rm")
@click.argument("keys", nargs=-1, metavar="KEY…")
@click.option("--all", "everything", is_flag=True, help="Remove every entry.")
def rm(keys: tuple[str, ...], everything: bool) -> None:
    """Remove entries; later compiles recreate them. Bundles are not changed."""
    if bool(keys) == everything:
        raise click.UsageError("give KEYs (see `bringup cache ls`), or --all")
    store = _store()
    entries = list(store.entries())
    chosen = [entry for entry in entries if everything or entry.key.startswith(keys)]
    unknown = [key for key in keys if not any(entry.key.startswith(key) for entry in entries)]
    if unknown:
        raise fail("BU041", f"the cache has no entry `{unknown[0]}`", help="`bringup cache ls` lists keys and names")
    freed = store.remove(chosen)
    print(f"removed {plural(len(chosen), 'entry', 'entries')}, {size(freed)}", file=sys.stderr)


def _store() -> Store:
    from bringup.compile.cache.store import default_store

    return default_store()


def _age(entry: Entry) -> str:
    return f"used {age(time.time() - entry.used)} ago"
