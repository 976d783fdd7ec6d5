"""A tiny Llama with a tokenizer, a chat template and five LoRAs, compiled once; and a process that serves it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from bringup.compile.job import open_job
from bringup.compile.text.chat import Chat
from bringup.compile.text.tokenizer import Tokenizer, to_folder
from tests import PATIENCE
from tests.runtime.lora.bases import VOCABULARY, Base, save
from tests.runtime.lora.conftest import SEQUENCES, compiled, with_every_slot
from tests.serve.inside import TEMPLATE

KEY = "key-of-the-tests"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return save(tmp_path_factory.mktemp("served"), "llama")


@pytest.fixture(scope="session")
def bundle(base: Base) -> Path:
    """On torch, for several sequences, with fewer slots than LoRAs: the program of tests/runtime/lora, traced there."""
    backend = tokenizers.Tokenizer(WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    backend.pre_tokenizer = WhitespaceSplit()
    to_folder(Tokenizer(backend, frozenset({0}), Chat(TEMPLATE)), base.folder.parent / "tokenizer")
    job = open_job(None, base.folder, tokenizer=str(base.folder.parent / "tokenizer"))
    return compiled(with_every_slot(job), base.folder.parent / "tiny.bundle", "torch", sequences=SEQUENCES)


# Runs the command line; the batch begins no step while a file exists.
HELD = """
import sys, time
from pathlib import Path
from bringup.cli.main import main
from bringup.compile.runtime.batch import Batch
step, hold = Batch.step, Path(sys.argv.pop(1))
def held(batch):
    while hold.exists():
        time.sleep(0.01)
    return step(batch)
Batch.step = held
main()
"""


class Process:
    """`bringup serve` in a process of its own, once it serves. Requests get no token while the file `hold` exists.

    `descriptors`: the number of files that it may open.
    """

    def __init__(
        self, bundle: Path, loras: Mapping[str, Path], hold: Path, *options: str, descriptors: int | None = None
    ) -> None:
        self.hold = hold
        words = ["serve", str(bundle), "--port", "0", *options]
        words += [word for name, path in loras.items() for word in ("--lora", f"{name}={path}")]
        limited = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]
        self.running = subprocess.Popen(
            [*limited, sys.executable, "-c", HELD, str(hold), *words], stderr=subprocess.PIPE, text=True,
            env=os.environ | {"BRINGUP_API_KEY": KEY, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.running.stderr
        self.log = ""
        for line in self.running.stderr:
            self.log += line
            if found := re.search(r"serving (.*) at (http://127\.0\.0\.1:(\d+))/v1", line):
                self.names, self.url, self.port = found[1], found[2], int(found[3])
                return
        raise AssertionError(self.log)

    def end(self) -> int:
        """The exit code, and in `log` what it wrote."""
        assert self.running.stderr
        if not self.running.stderr.closed:
            with self.running.stderr as stderr:
                self.log += stderr.read()
        return self.running.wait(PATIENCE)


@pytest.fixture(scope="module")
def process(base: Base, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    served = Process(bundle, base.loras, tmp_path_factory.mktemp("served") / "hold")
    yield served
    served.running.kill()
    served.end()
