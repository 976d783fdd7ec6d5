"""A published Llama, valid and with one tensor missing; and the package installed in an environment without torch."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig

from tests.models import parity

ROOT = Path(__file__).parents[2]
NEEDED = ("numpy", "ml_dtypes", "click", "setuptools")  # what the package needs, and what builds it


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = LlamaConfig(
        vocab_size=132, hidden_size=48, intermediate_size=81, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, max_position_embeddings=256,
    )  # fmt: skip
    return parity.save_checkpoint(words, tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="session")
def bad(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    tensors = load_file(good / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(good / "config.json", folder)
    return folder


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git has: building a package writes next to its sources."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).exists() and not name.startswith(("tests/", "benchmarks/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the package needs and what builds it, and nothing else that is installed."""
    folder = tmp_path_factory.mktemp("linked")
    for name in NEEDED:
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (folder / top).symlink_to(Path(str(found.locate_file(top))).resolve())
    return folder


@pytest.fixture(scope="session")
def core(checkout: Path, linked: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell whose python3 has numpy, ml_dtypes and click, and neither torch nor bringup."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder / "venv", with_pip=True)
    site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    for old in site.glob("setuptools*"):  # of ensurepip
        shutil.rmtree(old)
    (site / "linked.pth").write_text(f"{linked}\n")
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "PYTEST"))}
    return own | {
        "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_BUILD_ISOLATION": "false",  # which turns it off
        "PIP_NO_INDEX": "1",
        "GITHUB_ACTION_PATH": str(checkout),
        "GITHUB_ACTIONS": "true",
    }


def run(words: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
    """A command, with what it printed on both streams in stdout."""
    return subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **settings)  # type: ignore[call-overload]
