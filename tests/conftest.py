from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from bringup.system.gc_pause import gc_paused
from tests import fewer_cases

ROOT = Path(__file__).parent
# No test depends on the time that a busy machine needs for an example.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")
# What takes longest, longest first: of several workers none is to wait at the end for one that has just begun. Files
# that open the same bundles are apart: what the first one compiles, the second finds in the cache.
LONGEST = (
    "models/test_families.py",
    "targets/recurrent/test_recurrent_gpu.py",
    "kernels/test_resources.py",
    "models/test_rounding.py",
    "models/test_smollm2.py",
    "resources/",
    "llvm/test_variants.py",
    "quantised/test_fp8_activations.py",
    "llvm/test_users_ops.py",
    "kernels/test_fp8.py",
    "kernels/recurrent/test_resources.py",
    "targets/recurrent/test_state_space.py",
    "models/test_gpt2.py",
    "hip/",
    "llvm/test_quant.py",
    "llvm/test_products.py",
    "hostile/test_fuzz.py",
    "llvm/test_int8.py",
    "codes/test_pages.py",
    "llvm/test_attention.py",
    "compile/test_bisect.py",
    "compile/test_open_choices.py",
    "quantised/test_packed_formats.py",
    "targets/test_gpu_rings.py",
    "targets/test_llvm_packed.py",
    "compile/test_many_sequences.py",
    "kernels/test_mutations.py",
    "cache/test_stages.py",
    "targets/test_gpu.py",
    "kernels/test_attention.py",
    "schedule/test_families.py",
    "kernels/test_models.py",
    "schedule/test_schedule.py",
    "kernels/test_products.py",
    "quantised/test_packed_gpu.py",
    "targets/test_gpu_sampling.py",
    "runtime/lora/test_peft.py",
    "targets/test_llvm.py",
    "check/test_experts.py",
    "targets/test_gpu_speed.py",
    "check/mutations/test_mutations.py",
    "runtime/lora/test_batch.py",
    "compile/test_cache_dtype.py",
    "adapters/test_dialects.py",
    "graphs/test_rope_sequences.py",
    "kernels/test_latent_attention.py",
    "compile/test_carried.py",
    "compile/test_lowering.py",
    "ptx/test_kernels.py",
    "cache/test_bundles.py",
    "cache/test_package.py",
    "runtime/test_speculative_models.py",
    "runtime/drafts/test_models.py",
    "runtime/test_speculative_hidden.py",
    "runtime/test_acceptance.py",
    "runtime/test_rewind.py",
    "convert/test_fit.py",
    "ci/test_action.py",
    "hostile/test_config.py",
    "compile/test_verify_modules.py",
    "runtime/test_batch.py",
    "serve/test_process.py",
    "runtime/lora/test_run.py",
    "compile/test_tokenizer_pieces.py",
    "kernels/test_gpu_benchmark.py",
    "runtime/test_engine_inputs.py",
    "schedule/test_refused.py",
    "targets/test_implementations.py",
    "compile/test_verify_bundle.py",
    "kernels/test_elements.py",
    "compile/test_chat.py",
    "compile/test_layouts.py",
    "targets/test_third_party.py",
    "check/mutations/test_pairs.py",
    "targets/test_numpy_fused.py",
    "compile/test_opaque_ops.py",
    "compile/test_build.py",
    "convert/test_export.py",
    "models/test_deepseek_mtp_sidecar.py",
    "cli/test_streams.py",
    "compile/test_verify.py",
    "compile/test_arguments.py",
    "test_house.py",
    "adapters/test_gguf_families.py",
    "report/",
    "compile/test_large_tokenizer.py",
    "flagships/",
    "check/test_quantised.py",
    "quantised/test_packed_routes.py",
    "adapters/test_gguf_types.py",
    "targets/test_gpu_batches.py",
    "compile/test_conversation.py",
    "compile/test_verify_against.py",
    "cache/test_checkpoints.py",
)
OBJECTS = 50_000  # made between two looks for garbage: Python's own 700 take a fifteenth of the time of traces
BY_FAMILY = "models/test_families.py"  # too long for one worker, and nothing of a family serves another
TOGETHER = ("tests/resources/", "tests/report/", "tests/hip/")


class ByFile(LoadFileScheduling):
    """Tests of a file stay together, for they share what they compile; of the file of all families, those of one.

    Those of a folder in TOGETHER share a process, or bundles, that take seconds to prepare.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.endswith(BY_FAMILY):
            return file + test.partition("[")[2].partition("-")[0]
        return next((folder for folder in TOGETHER if folder in file), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live to the end: the collector looks for no garbage among them; for other, more rarely.

    pytest keeps the bytecode of rewritten assertions by the digest of their text: rewriting takes half of a collection.
    """
    with gc_paused(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", False)
        collected = yield
    gc.freeze()
    atexit.register(gc.unfreeze)  # modules are collected, as they are without this, but not once more by pytest before
    gc.set_threshold(OBJECTS)
    return collected


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Marks tests before they are selected by their marks, and sorts those that are selected."""
    fewer_cases.mark_the_others(items, ROOT)
    result = yield
    items.sort(key=lambda item: _place(item.path.relative_to(ROOT).as_posix()))
    return result


def _place(file: str) -> int:
    return next((number for number, name in enumerate(LONGEST) if file.startswith(name)), len(LONGEST))


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say the same on a developer's machine and in a step of GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "BRINGUP_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def nothing_flushed() -> Iterator[None]:
    """Files are read back from memory: nothing here survives the machine, and a flush takes 8 ms on a common disk.

    A descriptor that is not open still fails. The processes of tests/resources flush what they write.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, os.fstat, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiles of one run of the tests, of all its workers, share a cache; nobody's own is read or written."""
    base = tmp_path_factory.getbasetemp()
    of_run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # a worker's folder is below the run's
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_COMPILE_CACHE", str(of_run / "compile-cache"))
        yield


# --- fixtures import torch and what compiles, because the process that distributes tests to workers does not need them


@pytest.fixture(scope="session")
def start_triton() -> Callable[[], AbstractContextManager[Any]]:
    """Starts a process that compiles kernels."""
    from bringup.compile.kernels import aot

    return aot._worker


@pytest.fixture(autouse=True, scope="session")
def triton_processes(start_triton: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """A process that compiles kernels serves the tests of a worker one after the other (`fresh_triton`: not these)."""
    from bringup.compile.kernels import aot
    from tests.triton_processes import Processes

    processes = Processes(start_triton)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aot, "_worker", processes.worker)
        yield
    processes.close()


@pytest.fixture(autouse=True, scope="session")
def loaded_programs() -> Iterator[None]:
    """A program of the target `torch` that many bundles hold is read once by a worker."""
    from bringup.compile.targets import torch_executor
    from tests.loaded_programs import LoadedPrograms

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_executor, "load_archive", LoadedPrograms(torch_executor.load_archive))
        yield


@pytest.fixture
def fresh_triton(start_triton: Callable[[], AbstractContextManager[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compile starts its own process, as it does for a user."""
    from bringup.compile.kernels import aot

    monkeypatch.setattr(aot, "_worker", start_triton)
