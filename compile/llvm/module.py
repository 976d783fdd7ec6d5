# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Emits kernels as a module of LLVM IR, compiles it to an object file, and loads object files into this process."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from llvmlite import binding, ir

from bringup.compile.llvm import kernels as folder
from bringup.compile.llvm.ir.emitter import Emitter
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.ir.threads import define_threads
from bringup.compile.llvm.select.call import Kernel

FILES = {  # stem -> file, of kernels whose file has another name
    **dict.fromkeys(("rms_norm", "layer_norm", "softmax"), "norms"),
    **dict.fromkeys(("top_experts", "keep_best_groups"), "routing"),
    **dict.fromkeys(("rows_of_experts", "to_blocks", "from_blocks"), "expert_rows"),
    **dict.fromkeys(("cached_rows", "index_scores", "top_keys", "selected_positions", "marked_keys"), "indexer"),
    **dict.fromkeys(("lora_shrink", "lora_expand", "lora_lookup", "slots_to_blocks"), "lora"),
    **{f"quant_{name}": f"quant.{name}" for name in ("along", "bytes", "digits", "row", "rows", "tiles", "lookup")},
    **{name: f"recurrent.{name}" for name in ("causal_conv", "gated_delta_rule", "state_space")},
    **{name: f"general.{name}" for name in ("fold", "scan", "sort", "put")},
}
ELEMENTS = ("elements", "fold")  # the kernels with scalar loops, which LLVM vectorises


def texts_of(kernels: Iterable[Kernel], machine: Machine) -> tuple[str, str]:
    """Two modules, in which each kernel is defined once: kernels with explicit vectors, and element-wise kernels.

    A kernel is defined after the kernels that it calls.
    """
    written, elements = ir.Module("kernels"), ir.Module(ELEMENTS[0])
    for module in (written, elements):
        module.triple = machine.triple
    outer = sorted(set(kernels), key=lambda each: each.name)
    for name, kernel in {each.name: each for one in outer for each in (*one.inner, one)}.items():
        module = elements if kernel.stem in ELEMENTS else written
        emit = getattr(import_module(f"{folder.__name__}.{FILES.get(kernel.stem, kernel.stem)}"), kernel.stem)
        emit(Emitter(module, name, machine), kernel.values)
    return str(written), str(elements)


def threads_text(machine: Machine) -> str:
    """The module that runs a step. It is the same for all models, because kernels are called by address."""
    module = ir.Module("threads")
    module.triple = machine.triple
    define_threads(module, machine)
    return str(module)


def compiled(text: str, machine: Machine, *, vectorise: bool) -> bytes:
    """The object file of a module. Raises RuntimeError if the text is not valid LLVM IR.

    `vectorise` enables LLVM's loop vectoriser. For kernels with explicit vectors, it takes ten times as long to compile
    and is not faster. Neither is loop unrolling.
    """
    target = machine.target_machine()
    module = binding.parse_assembly(text)
    module.data_layout = str(target.target_data)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = vectorise
    options.slp_vectorization = options.loop_unrolling = options.loop_interleaving = False
    builder = binding.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)
    return target.emit_object(module)


class Loaded:
    """The functions of object files. They stay in memory as long as this object."""

    def __init__(self, objects: Iterable[bytes], machine: Machine) -> None:
        """An invalid object file ends the process; `Objects.read` checks the digests."""
        self._engines = [_engine(code, machine) for code in objects]

    def address(self, name: str) -> int:
        """The address of a function. Raises LookupError if no object file defines it."""
        for engine in self._engines:
            if found := engine.get_function_address(name):
                return found
        raise LookupError(f"the object files have no function `{name}`")


def _engine(code: bytes, machine: Machine) -> binding.ExecutionEngine:
    """Each file needs its own engine: within one, constants of a second file are read at wrong addresses."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine.target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
