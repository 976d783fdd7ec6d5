"""The files next to a tokenizer.json: the tokens that end a text, the names of special tokens, the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.checkpoints.files import opened
from bringup.compile.text.chat import Chat
from bringup.compile.text.gguf_vocab import Vocab
from bringup.diagnostics import BringupError, fail

if TYPE_CHECKING:
    import tokenizers

GENERATION, CONFIG, TEMPLATE = "generation_config.json", "tokenizer_config.json", "chat_template.jinja"
OF_PROCESSOR = "chat_template.json"  # LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE of transformers/utils/hub.py
MOST_TEMPLATE = 1 << 20  # bytes; the longest published ones have 30,000


def sidecar_eos(folder: Path, backend: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids that end a text: those of generation_config.json (without it, of config.json), and that of
    tokenizer_config.json.
    """
    found = _words(folder / GENERATION).get("eos_token_id")
    if found is None:
        found = _words(folder / "config.json").get("eos_token_id")
    token = _named(_words(folder / CONFIG)).get("eos_token")
    return end_ids(found) | end_ids(backend.token_to_id(token) if token else None)


def written_eos(folder: Path) -> frozenset[int]:
    """The ids that `write_sidecars` has written."""
    return end_ids(_words(folder / GENERATION).get("eos_token_id"))


def end_ids(given: object) -> frozenset[int]:
    """The ids of a config's `eos_token_id`, which is one id, a list of them or absent."""
    listed: Sequence[Any] = cast(Sequence[Any], given) if isinstance(given, list) else [given]
    return frozenset(number for number in listed if type(number) is int and number >= 0)


def sidecar_chat(folder: Path) -> Chat | None:
    """The template of chat_template.jinja, tokenizer_config.json or chat_template.json, of several the `default`.

    The first of these files that has a template counts; the last one is that of older processors.
    """
    words = _words(folder / CONFIG)
    if (folder / TEMPLATE).is_file():
        found: Any = read_small(folder / TEMPLATE, MOST_TEMPLATE).decode("utf-8", "replace")
    else:
        found = words.get("chat_template") or _words(folder / OF_PROCESSOR).get("chat_template")
    if isinstance(found, list):
        entries = [cast(dict[str, Any], entry) for entry in cast(list[Any], found) if isinstance(entry, dict)]
        found = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
    return Chat(found, _named(words)) if isinstance(found, str) else None


def chat_of_gguf(vocab: Vocab) -> Chat | None:
    """The template of the key `tokenizer.chat_template`; None without it."""
    meta = vocab.meta
    found = meta.scalar("tokenizer.chat_template")
    if not isinstance(found, str):
        return None
    pad = meta.scalar("tokenizer.ggml.padding_token_id")
    ids = {"bos_token": vocab.bos, "eos_token": vocab.eos, "unk_token": vocab.unknown, "pad_token": pad}
    known = {name: number for name, number in ids.items() if type(number) is int and 0 <= number < len(vocab.tokens)}
    return Chat(found, {name: vocab.tokens[number] for name, number in known.items()})


def write_sidecars(folder: Path, eos: frozenset[int], chat: Chat | None) -> None:
    """Writes the files that the functions above read."""
    (folder / GENERATION).write_text(json.dumps({"eos_token_id": sorted(eos)}) + "\n", "utf-8")
    if chat:
        (folder / TEMPLATE).write_text(chat.template, "utf-8", newline="")
        (folder / CONFIG).write_text(json.dumps(dict(chat.named), indent=2) + "\n", "utf-8")


def read_small(path: Path, limit: int) -> bytes:
    """The bytes of a file of at most `limit` bytes. Raises BU231 for a larger one, BU233 if it cannot be read."""
    with opened(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise unreadable(path, f"it has over {limit >> 20} MiB")
    return data


def unreadable(path: Path, why: str) -> BringupError:
    """BU231 for a file of a tokenizer."""
    return fail("BU231", f"`{path}` is not readable: {why}", help="fetch the file again", file=str(path))


def _words(path: Path) -> dict[str, Any]:
    try:
        return read_json(path) if path.is_file() else {}
    except ValueError as error:
        raise unreadable(path, str(error)) from None


def _named(words: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and similar keys, whose values are a text or an object with a `content`."""
    found: dict[str, str] = {}
    for name, token in words.items():
        content = cast(dict[str, Any], token).get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found
