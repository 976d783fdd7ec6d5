# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Machine: the processor that kernels are compiled for, and the features that they depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

# For each instruction set: float32 lanes of a vector register, and the number of vector registers.
_AVX512, _AVX2, _SSE, _NEON = (16, 32), (8, 16), (4, 16), (4, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`cpu` is LLVM's name of a processor; `features` are those that code may use beyond a baseline, sorted."""

    triple: str
    cpu: str
    features: tuple[str, ...]

    @property
    def lanes(self) -> int:
        """float32 lanes of a vector register."""
        return self._vectors[0]

    @property
    def registers(self) -> int:
        """The number of vector registers."""
        return self._vectors[1]

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def converts_halves(self) -> bool:
        """Whether there are instructions that convert float16 to float32 and back."""
        return "f16c" in self.features if self.is_x86 else self.triple.startswith(("aarch64", "arm64"))

    @property
    def adds_pairs(self) -> bool:
        """Whether there are dot product instructions for pairs of bfloat16 in 512-bit vectors (AVX512_BF16)."""
        return self._vectors == _AVX512 and "avx512bf16" in self.features

    @property
    def adds_bytes(self) -> bool:
        """Whether there are dot product instructions for bytes, and byte permutations, in 512-bit vectors."""
        return self._vectors == _AVX512 and {"avx512vnni", "avx512vbmi"} <= set(self.features)

    def runs_on(self, other: Machine) -> bool:
        """Whether code for this machine runs on another."""
        return self.triple == other.triple and set(self.features) <= set(other.features)

    def target_machine(self) -> Any:
        """LLVM's target machine, at its highest optimisation level, for code that is loaded into this process."""
        from llvmlite import binding

        _initialise()
        target = binding.Target.from_triple(self.triple)
        return target.create_target_machine(cpu=self.cpu, features=self.attributes, opt=3, reloc="pic", jit=True)

    @property
    def attributes(self) -> str:
        """LLVM's list of features to remove and to add, in this order: `-avx512bf16,…,+avx512bw`.

        The name of a processor implies all its features. A virtual machine may hide some of them, such as the bfloat16
        instructions of Sapphire Rapids, so those that the host does not report are removed.
        """
        hidden = _reported().keys() - set(self.features) if self == host() else ()
        return ",".join([*(f"-{name}" for name in sorted(hidden)), *(f"+{name}" for name in self.features)])

    @property
    def _vectors(self) -> tuple[int, int]:
        if not self.is_x86:
            return _NEON if self.triple.startswith(("aarch64", "arm64")) else _SSE
        found = set(self.features)
        if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= found:
            return _AVX512
        return _AVX2 if {"avx2", "fma"} <= found else _SSE


@cache
def host() -> Machine:
    """The processor of this machine."""
    from llvmlite import binding

    _initialise()
    features = tuple(sorted(name for name, has in _reported().items() if has))
    return Machine(triple=binding.get_process_triple(), cpu=binding.get_host_cpu_name(), features=features)


def generic() -> Machine:
    """The baseline processor of this machine's architecture: code for it runs on all of them."""
    return Machine(triple=host().triple, cpu="x86-64" if host().is_x86 else "generic", features=())


@cache
def _reported() -> dict[str, bool]:
    """The features that LLVM knows of, and whether this machine reports them."""
    from llvmlite import binding

    return dict(binding.get_host_cpu_features())


@cache
def _initialise() -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
