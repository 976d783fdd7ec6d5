"""Packages that some commands need, and how each is installed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution; `extra` is the extra of bringup that brings it, "" when bringup itself does."""

    name: str
    module: str
    extra: str

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'bringup[{self.extra}]'" if self.extra else f"pip install {self.name}"


PACKAGES = (
    Package("numpy", "numpy", ""),
    Package("ml_dtypes", "ml_dtypes", ""),
    Package("torch", "torch", "compile"),
    Package("torch-mlir", "torch_mlir", "compile"),
    Package("iree-base-compiler", "iree.compiler", "compile"),
    Package("iree-base-runtime", "iree.runtime", "compile"),
    Package("tokenizers", "tokenizers", "compile"),
    Package("gguf", "gguf", "compile"),
    Package("huggingface_hub", "huggingface_hub", "hub"),
    Package("transformers", "transformers", "verify"),
    Package("accelerate", "accelerate", "verify"),
    Package("triton", "triton", ""),
)


def needed(module: str) -> Package | None:
    """The package that a module, or the package above it, comes from."""
    above = [p for p in PACKAGES if f"{module}.".startswith(f"{p.module}.") or p.module.startswith(f"{module}.")]
    return above[0] if module and above else None
