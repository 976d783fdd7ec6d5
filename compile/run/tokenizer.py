"""Text to token ids and back, by the `tokenizers` package, from a tokenizer.json or GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.readers.files import strict_json
from bringup.adapters.readers.gguf import MAGIC, metadata
from bringup.adapters.readers.gguf_tokenizer import eos_ids, tokenizer_json
from bringup.diagnostics import BringupError, fail

if TYPE_CHECKING:
    import tokenizers

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what undecodable bytes become


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """`eos` are the ids after which generation stops."""

    backend: tokenizers.Tokenizer
    eos: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written in the text count as such, and the model's prefix is added."""
        return self.backend.encode(text).ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of ids, with or without special tokens such as `<|im_end|>`."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def stream(self, *, skip_special: bool = False) -> Stream:
        return Stream(self, skip_special)


@dataclass(slots=True)
class Stream:
    """Text as its ids arrive: the pieces of `push`, and then that of `finish`, make up `decode` of all ids.

    A character whose bytes are spread over tokens is held back until it is whole. Each piece is what ids add
    to the text of those given out last, since a decoder may treat the first of a text apart.
    """

    tokenizer: Tokenizer
    skip_special: bool = False
    ids: list[int] = field(default_factory=list[int])  # those given out last, then those held back
    num_given: int = 0

    def push(self, token: int) -> str:
        """The text that is certain once this id is known; often empty."""
        self.ids.append(token)
        new = self._held()
        if not new or new.endswith(REPLACEMENT):
            return ""
        self.ids, self.num_given = self.ids[self.num_given :], len(self.ids) - self.num_given
        return new

    def finish(self) -> str:
        """What was held back; bytes that never became a character come as U+FFFD."""
        new = self._held()
        self.ids, self.num_given = [], 0
        return new

    def _held(self) -> str:
        given = self.tokenizer.decode(self.ids[: self.num_given], skip_special=self.skip_special)
        return self.tokenizer.decode(self.ids, skip_special=self.skip_special)[len(given) :]


def load_tokenizer(path: Path) -> Tokenizer:
    """From a tokenizer.json, a folder that has one, or a GGUF file. Raises BU231, BU232, BU922."""
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        help = "give a tokenizer.json, or a folder that has one"
        raise fail("BU231", f"no tokenizer at `{path}`", help=help, file=str(path))
    with path.open("rb") as file:
        is_gguf = file.read(len(MAGIC)) == MAGIC
    if is_gguf:
        meta = metadata(path)
        return Tokenizer(_build(json.dumps(tokenizer_json(meta)).encode(), path), eos_ids(meta))
    backend = _build(path.read_bytes(), path)
    return Tokenizer(backend, _eos_beside(path.parent, backend))


def to_folder(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a tokenizer.json, and a generation_config.json that says `eos`, for `load_tokenizer`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str(), "utf-8")
    text = json.dumps({"eos_token_id": sorted(tokenizer.eos)})
    (folder / "generation_config.json").write_text(text + "\n", "utf-8")


def _build(text: bytes, path: Path) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError:
        help = "run: pip install 'bringup[compile]'"
        raise fail("BU922", "the package `tokenizers` is not installed", help=help) from None
    try:
        backend = tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:  # what its Rust code raises for a bad file is a plain Exception
        raise _unreadable(path, str(error)) from None
    backend.no_truncation()  # settings of training that some published files keep
    backend.no_padding()
    return backend


def _eos_beside(folder: Path, backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids in generation_config.json (without it, config.json), and the token in tokenizer_config.json."""
    said = _words(folder / "generation_config.json").get("eos_token_id")
    if said is None:
        said = _words(folder / "config.json").get("eos_token_id")
    listed: Sequence[Any] = cast(Sequence[Any], said) if isinstance(said, list) else [said]
    token = _words(folder / "tokenizer_config.json").get("eos_token")
    content = cast(dict[str, Any], token).get("content") if isinstance(token, dict) else token
    named = backend.token_to_id(content) if isinstance(content, str) else None
    return frozenset(number for number in (*listed, named) if type(number) is int)


def _words(path: Path) -> dict[str, Any]:
    try:
        return strict_json(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise _unreadable(path, str(error)) from None


def _unreadable(path: Path, why: str) -> BringupError:
    return fail("BU231", f"`{path}` is not readable: {why}", help="fetch the file again", file=str(path))
