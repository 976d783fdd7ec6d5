# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""transformers as the independent reference: the same checkpoint, its own loader, its own code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.quantization import quantization_words
from bringup.compile.bundle.weights_file import write_weights
from bringup.compile.parity.owners import Owners, owners_in_transformers
from bringup.compile.parity.padding_rows import restore_padding_rows
from bringup.compile.parity.quantised import Rewritten, dequantising, rewritten_scales, with_floats, without_reference
from bringup.compile.parity.rounding_cache import rounding_cache
from bringup.compile.parity.time_steps import remove_time_step_bounds
from bringup.diagnostics import BringupError, fail

if TYPE_CHECKING:
    import numpy as np

INPUT = "@input"  # suffix of a module's name: the module's input
_OF_QUANTISERS = (AssertionError, ImportError, NotImplementedError, RuntimeError, ValueError)
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # the names that transformers opens


class Reference:
    """A transformers model of a checkpoint and a config, in `dtype`, with `eager` attention.

    The contents of its cache (keys and values, the latents of MLA, an indexer's keys) are rounded to `cache_dtype`;
    None does not round. `parts` are the names of tensors that quantised weights are stored in. Raises BU703 if
    transformers cannot load that model, would initialise a part of its weights, or does not read all of `parts`. Its
    methods raise BU703 if the code of a quantisation package fails.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: Mapping[str, Any],
        dtype: str,
        cache_dtype: str | None = None,
        parts: Container[str] = (),
    ) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self.name, self.dtype = f"transformers {transformers.__version__}", dtype
        self.cache_dtype = None if cache_dtype == dtype else cache_dtype
        self.config, self.tensors = config, [*checkpoint.headers]
        if why := without_reference(config):
            raise _unknown(config, why)
        model = open_model(
            checkpoint,
            dequantising(config),
            parts,
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
            experts_implementation="eager",
        )
        self.model = with_floats(model, config, getattr(torch, dtype))
        if restored := restore_padding_rows(self.model, checkpoint):
            self.name += f", which sets {' and '.join(restored)} to 0: compared with the checkpoint's values"
        if remove_time_step_bounds(self.model):
            self.name += ", without its lower bound of time steps in prompts"

    def logits(self, tokens: list[int]) -> np.ndarray:
        """The logits of every position, float32 [T, V]."""
        import torch

        with torch.no_grad():
            return self._run(tokens)

    def _run(self, tokens: list[int]) -> np.ndarray:
        import torch

        cache = rounding_cache(self.model.config, self.cache_dtype) if self.cache_dtype else None
        settings = {"use_cache": cache is not None, cache_name(self.model): cache}
        try:
            given = self.model(torch.tensor([tokens]), **settings)
        except _OF_QUANTISERS as error:  # quantised kernels support certain sizes, devices and packages only
            if not quantization_words(self.config):
                raise
            raise _unknown(self.config, f"its code for quantised weights failed: {error}") from error
        return given.logits[0].float().numpy()

    def observe(self, tokens: list[int]) -> Observed:
        """Logits and activations of one forward pass, which remain when the model is freed.

        The first of equal scores are selected; the name states it if torch's `topk` selects others, and if all logits
        are 0.
        """
        import torch

        from bringup.compile.parity.equal_scores import FirstOfEqual

        outputs: list[np.ndarray] = []

        def run() -> None:
            outputs.append(self._run(tokens))

        with torch.no_grad(), FirstOfEqual() as selecting:
            seen = record(self.model, run)
        name = self.name
        if selecting.rows:
            name += ", whose `topk` selects any of equal scores: compared with the first ones selected"
        if not outputs[0].any():
            name += ", all of whose logits are 0, so that agreement shows nothing of the layers before the head"
        return Observed(
            name,
            self.dtype,
            outputs[0],
            {name: array for name, array in seen.items() if array.ndim > 1 and len(array) == len(tokens)},
            owners_in_transformers(self.model, self.tensors),
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """A reference's outputs for T tokens: float32 logits [T, V], and `arrays` [T, …] with the names of `record`.

    Only inputs and outputs with a row for each token are included: attention weights, or the rows of one expert, have
    another number of rows. `owners` has the checkpoint tensors of each module.
    """

    name: str
    dtype: str
    whole: np.ndarray
    arrays: Mapping[str, np.ndarray]
    owners: Owners

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Float32 [len(tokens), V], for a prefix of the tokens."""
        return self.whole[: len(tokens)]

    def activations(self, tokens: list[int]) -> dict[str, np.ndarray]:
        """Inputs and outputs of modules for a prefix of the tokens: float32 [len(tokens), …] by name."""
        return {name: array[: len(tokens)] for name, array in self.arrays.items()}


def record(model: Any, run: Any) -> dict[str, np.ndarray]:
    """The output of each module of a torch model, as `NAME`, and its input, as `NAME@input`, while `run()` runs.

    Float32 [T, …], in the order in which modules finish; of several outputs or inputs, the first float one. Further
    inputs with a row for each of the first, such as the experts that a router selects, are `NAME@input2` and so on;
    they may be integers. A leading batch axis of 1 is dropped. If a module runs more than once, its last run is
    recorded. torch's `topk` selects the first of equal scores.
    """
    import torch

    from bringup.compile.parity.equal_scores import FirstOfEqual

    seen: dict[str, np.ndarray] = {}

    def array(value: torch.Tensor) -> np.ndarray:
        found = value.detach()
        found = found.float() if found.is_floating_point() else found
        return (found[0] if found.ndim > 2 and found.shape[0] == 1 else found).cpu().numpy().copy()

    def floats(values: Iterable[Any]) -> Iterator[torch.Tensor]:
        return (value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())

    def keep(name: str, values: Iterable[Any]) -> torch.Tensor | None:
        if (first := next(floats(values), None)) is not None:
            seen[name] = array(first)
        return first

    def watch(name: str) -> Any:
        def hook(module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            keep(name, output[:1] if isinstance(output, tuple) else (output,))
            first = keep(name + INPUT, (*args[:1], kwargs.get("hidden_states")))
            if first is None:
                return
            further = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x is not first]
            alike = [x for x in map(array, further) if x.ndim > 1 and len(x) == len(seen[name + INPUT])]
            seen.update({f"{name}{INPUT}{number}": x for number, x in enumerate(alike, 2)})

        return hook

    hooks = [
        module.register_forward_hook(watch(name), with_kwargs=True) for name, module in model.named_modules() if name
    ]
    try:
        with FirstOfEqual():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def known_config(config: Mapping[str, Any]) -> Any:
    """The config as transformers reads it. Raises BU703 if transformers has no causal language model for it."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
        Path(folder, "config.json").write_text(json.dumps(dict(config)), "utf-8")
        try:
            read = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except (ValueError, KeyError, StrictDataclassError) as error:
            own = "its code is the checkpoint's own (`auto_map`), which bringup does not run"
            raise _unknown(config, own if config.get("auto_map") else error) from error
    if not _sees(config) and type(read) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _unknown(config, f"`{read.model_type}` is not a causal language model there")
    return read


def cache_name(model: Any) -> str:
    """The name of the cache in a transformers model's arguments and output, which 5.24 changed."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


def open_model(checkpoint: Checkpoint, config: Mapping[str, Any], parts: Container[str] = (), **options: Any) -> Any:
    """The transformers model, for inference. Raises BU703 as `Reference` does."""
    model, loading = _loaded(checkpoint, config, **options, output_loading_info=True)
    if missing := sorted(loading["missing_keys"]):
        raise _unknown(config, f"it finds no `{missing[0]}` in the checkpoint ({len(missing)} are missing)")
    if ignored := sorted(name for name in loading["unexpected_keys"] if name in parts):
        raise _unknown(config, f"it ignores `{ignored[0]}`, a part of a quantised weight ({len(ignored)} such tensors)")
    return model.eval()


def _loaded(checkpoint: Checkpoint, config: Mapping[str, Any], **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model, and transformers' report on loading it."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    kind = "ImageTextToText" if _sees(config) else "CausalLM"
    load: Any = getattr(transformers, f"AutoModelFor{kind}").from_pretrained
    path = Path(checkpoint.provenance.get("path", ""))
    if dict(config) != dict(checkpoint.config) or checkpoint.format != "gguf":
        options["config"] = known_config(config)
    try:
        if checkpoint.format == "gguf":
            import_module("accelerate")  # transformers needs it for GGUF, and raises a bare ValueError without it
            return load(str(path.parent), gguf_file=path.name, **options)
        scales = rewritten_scales(checkpoint, config)
        if not scales and (path / "config.json").is_file() and any((path / name).is_file() for name in _WEIGHTS):
            return load(str(path), **options)
        with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
            _write(checkpoint, config, Path(folder), scales)
            return load(folder, **options)
    except (ValueError, RuntimeError, StrictDataclassError) as error:  # a GGUF that it misreads; other shapes
        raise _unknown(config, error) from error
    except ImportError as error:  # of a quantisation package
        if error.name or not quantization_words(config):
            raise
        raise _unknown(config, error) from error


def _sees(config: Mapping[str, Any]) -> bool:
    """Whether transformers lists it among models of text and images only; Mistral 4's model of text is there too."""
    from transformers.models.auto import modeling_auto as known

    both = known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys()
    return config.get("model_type") in both - known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()


def _unknown(config: Mapping[str, Any], why: object) -> BringupError:
    """BU703; of the reason, such as an exception, the first line is reported."""
    name = next(iter(config.get("architectures") or []), config.get("model_type", "this model"))
    line = str(why).strip().replace(":\n    ", ": ").partition("\n")[0]
    return fail(
        "BU703",
        f"transformers has no reference for `{name}`: {line}",
        help="record the model's own code with `save_activations` and pass the file: --against FILE; "
        "`bringup explain verify` shows how",
    )


def _write(checkpoint: Checkpoint, config: Mapping[str, Any], folder: Path, others: Mapping[str, Rewritten]) -> None:
    """The checkpoint as a folder that transformers opens, with other arrays in place of some of its tensors."""

    def array(name: str) -> np.ndarray:
        found = checkpoint.read(checkpoint.headers[name])
        return others[name].array(found) if name in others else found

    (folder / "config.json").write_text(json.dumps(dict(config)), "utf-8")
    headers = [others[name].info if name in others else info for name, info in checkpoint.headers.items()]
    write_weights(folder / "model.safetensors", headers, array)
    checkpoint.refuse_changed()
