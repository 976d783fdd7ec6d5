"""Packages that some commands need, and how each is installed."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from bringup import __version__


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution; `extra` is the extra of bringup that installs it, "" if bringup itself does.

    `alone` is what pip installs if a command needs this package and no other of its extra, "" if that is never so.
    """

    name: str
    module: str
    extra: str
    alone: str = ""

    @property
    def smallest(self) -> str:
        """The command that installs as little as a command needs that lacks this package alone."""
        return f"pip install {self.alone}" if self.alone else self.install

    @property
    def install(self) -> str:
        """The command that installs it with the rest of its extra."""
        return f"pip install 'bringup[{self.extra}]'" if self.extra else f"pip install {self.name}"


PACKAGES = (
    Package("numpy", "numpy", ""),
    Package("ml_dtypes", "ml_dtypes", ""),
    Package("torch", "torch", "compile"),
    Package("llvmlite", "llvmlite", "compile", alone="'bringup[llvm]'"),
    Package("torch-mlir", "torch_mlir", "compile"),
    Package("iree-base-compiler", "iree.compiler", "compile"),
    Package("iree-base-runtime", "iree.runtime", "compile"),
    Package("tokenizers", "tokenizers", "compile", alone="tokenizers"),
    Package("jinja2", "jinja2", "compile", alone="jinja2"),
    Package("gguf", "gguf", "compile", alone="gguf"),
    Package("huggingface_hub", "huggingface_hub", "hub"),
    Package("transformers", "transformers", "verify"),
    Package("accelerate", "accelerate", "verify"),
    Package("triton", "triton", "gpu"),
    Package("starlette", "starlette", "serve"),
    Package("uvicorn", "uvicorn", "serve"),
    Package("prometheus-client", "prometheus_client", "serve"),
)

# What commands do, and the packages of each; everything also needs those of bringup itself.
FEATURES = {
    "check, inspect, convert": (),
    "run bundles for cpu": ("llvmlite",),
    "compile, run other bundles": (
        "torch",
        "llvmlite",
        "torch-mlir",
        "iree-base-compiler",
        "iree-base-runtime",
    ),
    "text and chats as prompts": ("tokenizers", "jinja2"),
    "GGUF tokenizers": ("tokenizers", "gguf"),
    "compile for GPUs": ("torch", "triton"),
    "verify with transformers": ("torch", "transformers", "accelerate"),
    "serve": ("starlette", "uvicorn", "prometheus-client"),
    "downloads from the hub": ("huggingface_hub",),
}
# Of the packages of `compile`, those that nobody installs for another purpose.
COMPILERS = ("torch-mlir", "iree-base-compiler", "iree-base-runtime")


def needed(module: str) -> Package | None:
    """The package that provides a module or its parent package."""
    above = [p for p in PACKAGES if f"{module}.".startswith(f"{p.module}.") or p.module.startswith(f"{module}.")]
    return above[0] if module and above else None


def installed(name: str) -> str:
    """The version of an installed distribution, or ""."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def versions() -> str:
    """`bringup 0.1.0 (python 3.11.2, torch 2.13.0, …)`: the installed versions in one line."""
    found = [("python", platform.python_version()), *((p.name, installed(p.name)) for p in PACKAGES)]
    return f"bringup {__version__} ({', '.join(f'{name} {version}' for name, version in found if version)})"
