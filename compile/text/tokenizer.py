"""Text to token ids and back, with the `tokenizers` package, from a tokenizer.json or GGUF metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.adapters.checkpoints.files import opened
from bringup.adapters.checkpoints.gguf import MAGIC, Metadata, metadata
from bringup.compile.text.byte_fallback import REPLACEMENT, Fallback
from bringup.compile.text.chat import Chat
from bringup.compile.text.gguf_tokenizer import eos_ids, tokenizer_json
from bringup.compile.text.gguf_vocab import read_vocab, strings
from bringup.compile.text.limited_process import LimitExceeded, confined
from bringup.compile.text.panics import panics_as
from bringup.compile.text.sidecar_files import (
    chat_of_gguf,
    read_small,
    sidecar_chat,
    sidecar_eos,
    unreadable,
    write_sidecars,
)
from bringup.compile.text.stream import Stream
from bringup.diagnostics import BringupError, Diagnostic, Severity, fail

if TYPE_CHECKING:
    import tokenizers

MOST_BYTES = 64 << 20  # of a tokenizer.json; the largest published ones have 33 MB
NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates, except those that represent invalid bytes (PEP 383)
# Upper limits for loading one. A vocabulary of 262,144 with 580,000 merges needs 500 MB and 3 s.
MOST_MEGABYTES, MOST_SECONDS = 1000, 20.0


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer. Generation stops after the ids `eos`; `chat` is the format of a conversation, if it is known."""

    backend: tokenizers.Tokenizer
    eos: frozenset[int]
    chat: Chat | None = None
    warning: Diagnostic | None = None  # the reason if it is not the checkpoint's own
    fallback: Fallback = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fallback", Fallback.of(self.backend))

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """The token ids of a text; special tokens that are spelled in the text are recognised.

        With `whole`, the model's own tokens are added around the text. Invalid Unicode becomes U+FFFD. Raises BU613 if
        the library fails.
        """
        text = NO_BYTES.sub(REPLACEMENT, text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        with panics_as(_impossible):
            return self.backend.encode(text, add_special_tokens=whole).ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of ids, with or without special tokens such as `<|im_end|>`. Raises BU613 if the library fails."""
        with panics_as(_impossible):
            return self.fallback.decode(self.backend, list(ids), skip_special)

    def stream(self, *, skip_special: bool = False) -> Stream:
        """An incremental decoder."""
        return Stream(self.decode, skip_special)


def load_tokenizer(path: Path, *, trusted: bool = False) -> Tokenizer:
    """Loads a tokenizer from a tokenizer.json, from a folder that has one, or from a GGUF file.

    If the tokenizer in a GGUF file cannot be built, a tokenizer.json in its folder is used, with a warning. One that is
    not `trusted` (that of a bundle is) is first loaded in a separate process with limits. Raises BU231 if there is none
    or it is invalid, BU226 if it exceeds the limits, BU221 and BU232 for GGUF, BU922 without `tokenizers`.
    """
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        help = "pass a tokenizer.json, or a folder that has one"
        raise fail("BU231", f"no tokenizer at `{path}`", help=help, file=str(path))
    with opened(path) as file:
        is_gguf = file.read(len(MAGIC)) == MAGIC
    if is_gguf:
        return _of_gguf(path, trusted)
    backend = _build(read_small(path, MOST_BYTES), path, trusted)
    return Tokenizer(backend, sidecar_eos(path.parent, backend), sidecar_chat(path.parent))


def _of_gguf(path: Path, trusted: bool) -> Tokenizer:
    meta, sibling = metadata(path), path.with_name("tokenizer.json")
    try:
        vocab = read_vocab(meta)
        text = json.dumps(tokenizer_json(vocab), ensure_ascii=False).encode()
        return Tokenizer(_build(text, path, trusted), eos_ids(vocab), chat_of_gguf(vocab))
    except BringupError as error:
        if error.findings[0].code not in ("BU226", "BU231", "BU232") or sibling == path or not sibling.is_file():
            raise
        why = replace(error.findings[0], severity=Severity.WARNING, help=f"`{sibling}` is used instead")
    found = load_tokenizer(sibling, trusted=trusted)
    _check_same_model(found, meta, sibling)
    return replace(found, warning=why)


def _check_same_model(tokenizer: Tokenizer, meta: Metadata, path: Path) -> None:
    """Raises BU231 if most tokens of a GGUF file differ in the tokenizer.json of its folder."""
    try:
        tokens = strings(meta, "tokens")
    except BringupError:
        return  # there is nothing to compare with
    ids = tokenizer.backend.get_vocab()
    same = sum(ids.get(token) == index for index, token in enumerate(tokens))
    if 2 * same < len(tokens):
        raise fail(
            "BU231",
            f"`{path}` is not the tokenizer of `{meta.path}`: {same:,} of {len(tokens):,} tokens are the same",
            help="pass the model's own: --tokenizer FILE",
            file=str(path),
        )


def to_folder(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a tokenizer.json, and files with `eos` and `chat` next to it, for `load_tokenizer`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str(), "utf-8")
    write_sidecars(folder, tokenizer.eos, tokenizer.chat)


def _build(text: bytes, path: Path, trusted: bool) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError:
        help = "run: pip install tokenizers"
        raise fail("BU922", "the package `tokenizers` is not installed", help=help) from None
    if not trusted:
        _try(text, path)
    with panics_as(lambda why: unreadable(path, why)):
        backend = tokenizers.Tokenizer.from_buffer(text)
    backend.no_truncation()  # settings of training that some published files contain
    backend.no_padding()
    return backend


def _try(text: bytes, path: Path) -> None:
    """Raises BU226 for a file that needs more time or memory than `_limits`, BU231 for one that does not load."""
    try:
        seconds, megabytes = _limits(text)
        answer = json.loads(confined("tokenizer_trial.py", text, seconds=seconds, megabytes=megabytes))
    except LimitExceeded as error:
        help = "pass the model's published tokenizer.json: --tokenizer FILE"
        raise fail("BU226", f"the tokenizer in `{path}` {error}", help=help, file=str(path)) from None
    if answer["error"]:
        raise unreadable(path, answer["error"])


def _limits(text: bytes) -> tuple[float, int]:
    """The limits for a file, in seconds and megabytes, from its size and its number of entries.

    Each entry is a separate object. A merge is a list of two tokens, so many short tokens need more memory than the
    size of the file suggests.
    """
    size, entries = len(text) / 1e6, text.count(b",") / 1e6
    megabytes = 130 + max(12 * size, 4 * size + 250 * entries)
    return min(0.6 + size / 8 + 2 * entries, MOST_SECONDS), min(int(megabytes), MOST_MEGABYTES)


def _impossible(why: str) -> BringupError:
    help = "its tokenizer.json is inconsistent; compile again with the one that the model's authors published"
    return fail("BU613", f"the tokenizer failed: {why}", help=help)
