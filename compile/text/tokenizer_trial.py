"""Loads and tests a tokenizer.json: a script that runs in a limited process, with the file on stdin, JSON on stdout.

The file can require any amount of memory and time, and the Rust code of `tokenizers` can panic on it. A text that
cannot be encoded is not an error: a small vocabulary may lack a letter.
"""

from __future__ import annotations

import json
import sys

TEXT = "Hello, World!  It's 12345.678 \t\r\n\n na\u00efve \u65e5\u672c\u8a9e \U0001f600 x86_64 " + "a" * 40 + "  "


def tried(text: bytes) -> str:
    """The error of a tokenizer.json; "" if there is none."""
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:  # the Rust code raises a plain Exception
        return str(error)
    backend.no_truncation()
    backend.no_padding()
    vocab = backend.get_vocab()
    if len(set(vocab.values())) < len(vocab):
        return "two tokens have one id"
    ids = list(range(min(len(vocab), 64)))
    for run in (lambda: backend.encode(TEXT), lambda: backend.decode(ids), lambda: backend.decode(ids[:1])):
        try:
            run()
        except Exception:  # a text for which it has no tokens
            continue
    return ""


def main() -> None:
    """Reads the file, tests it, writes the answer."""
    try:
        message = tried(sys.stdin.buffer.read())
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's, which is not an Exception
            raise
        message = f"the library panics on it: {error}"
    json.dump({"error": message[:500]}, sys.stdout)


if __name__ == "__main__":
    main()
