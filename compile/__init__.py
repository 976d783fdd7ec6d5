"""The public surface for compiling and running. `check`, `convert` and `verify` are names of `bringup` itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.compile.cache.store import Store as Store
    from bringup.compile.convert.convert import Converted as Converted
    from bringup.compile.estimate.sizes import Sizes as Sizes
    from bringup.compile.estimate.sizes import dry_run as dry_run
    from bringup.compile.job import Job as Job
    from bringup.compile.job import open_job as open_job
    from bringup.compile.lora.check import check_lora as check_lora
    from bringup.compile.lora.convert import convert_lora as convert_lora
    from bringup.compile.lora.export import merge_lora as merge_lora
    from bringup.compile.lora.opening import load_lora as load_lora
    from bringup.compile.lora.ranks import convert_lora_ranks as convert_lora_ranks
    from bringup.compile.parity.activations import load_activations as load_activations
    from bringup.compile.parity.activations import save_activations as save_activations
    from bringup.compile.parity.parity import Parity as Parity
    from bringup.compile.parity.reference import record as record
    from bringup.compile.pipeline import build as build
    from bringup.compile.program.program import Executor as Executor
    from bringup.compile.program.program import Function as Function
    from bringup.compile.program.program import Interface as Interface
    from bringup.compile.program.trace_cached import EncodedProgram as EncodedProgram
    from bringup.compile.report.explain import explain as explain
    from bringup.compile.runtime.batch import Batch as Batch
    from bringup.compile.runtime.batch import load_batch as load_batch
    from bringup.compile.runtime.lora.weights import LoraFactors as LoraFactors
    from bringup.compile.runtime.lora.weights import LoraWeights as LoraWeights
    from bringup.compile.runtime.request import Event as Event
    from bringup.compile.runtime.request import Request as Request
    from bringup.compile.runtime.session import Session as Session
    from bringup.compile.runtime.session import load as load
    from bringup.compile.runtime.speculative import Speculative as Speculative
    from bringup.compile.targets.module_store import ModuleStore as ModuleStore
    from bringup.compile.targets.registry import target_named as target_named
    from bringup.compile.targets.target import Estimate as Estimate
    from bringup.compile.targets.target import Option as Option
    from bringup.compile.targets.target import Target as Target
else:
    from bringup.facade import lazy_dir, lazy_import, public_names

    _HOMES = {
        "cache.store": "Store",
        "convert.convert": "Converted",
        "estimate.sizes": "Sizes dry_run",
        "job": "Job open_job",
        "lora.check": "check_lora",
        "lora.convert": "convert_lora",
        "lora.export": "merge_lora",
        "lora.opening": "load_lora",
        "lora.ranks": "convert_lora_ranks",
        "parity.activations": "load_activations save_activations",
        "parity.parity": "Parity",
        "parity.reference": "record",
        "pipeline": "build",
        "program.program": "Executor Function Interface",
        "program.trace_cached": "EncodedProgram",
        "report.explain": "explain",
        "runtime.batch": "Batch load_batch",
        "runtime.lora.weights": "LoraFactors LoraWeights",
        "runtime.request": "Event Request",
        "runtime.session": "Session load",
        "runtime.speculative": "Speculative",
        "targets.module_store": "ModuleStore",
        "targets.registry": "target_named",
        "targets.target": "Estimate Option Target",
    }
    __all__ = public_names(_HOMES)
    __getattr__ = lazy_import(__name__, _HOMES)
    __dir__ = lazy_dir(__all__, globals())
