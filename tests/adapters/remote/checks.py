"""The check of a source, and the number of bytes that it must read."""

from __future__ import annotations

from click.testing import CliRunner

from bringup.cli.main import cli

JUNK = {"optimizer.pt": b"x" * 100, "training_args.bin": b"x", "original/consolidated.00.pth": b"x", "README.md": b"#"}


def checked(*words: str) -> int:
    done = CliRunner().invoke(cli, ["check", "--checkpoint", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.exit_code


def headers_of(files: dict[str, bytes]) -> int:
    """Bytes that have to be read: the headers, the index and the config."""
    shards = [8 + int.from_bytes(data[:8], "little") for name, data in files.items() if name.endswith(".safetensors")]
    return sum(shards) + sum(len(files[name]) for name in ("config.json", "model.safetensors.index.json"))
