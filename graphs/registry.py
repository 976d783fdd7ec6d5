"""Which graph and adapter serve a model: explicit, lazy, each architecture once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from bringup import plugins, userfiles
from bringup.diagnostics import BringupError, Diagnostic, Severity, did_you_mean, fail
from bringup.shown import short


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A graph class, its config class and the function `config -> Adapter`; each itself or as `module:name`.

    `dialect` is its `Dialect` (bringup.adapters.dialects.dialect), for GGUF files.
    """

    name: str
    graph: Any
    config: Any
    adapter: Any
    architectures: tuple[str, ...] = ()
    dialect: Any = None

    def __post_init__(self) -> None:
        """Raises TypeError for what no list of models could show: users and plugins make families too."""
        listed = cast("object", self.architectures)
        texts = [self.name, *(cast("Sequence[object]", listed) if isinstance(listed, tuple | list) else (None,))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a Family has a text as its name, and a tuple of texts as its architectures")

    def load(self, part: str) -> Any:
        """One of `graph`, `config`, `adapter`, `dialect`. An import error inside the model's file is that error."""
        return _load(getattr(self, part))

    @property
    def built_in(self) -> bool:
        """Whether it is one of ours."""
        return self in FAMILIES


def _load(what: Any) -> Any:
    if not isinstance(what, str):
        return what
    module, _, name = what.partition(":")
    return getattr(import_module(module), name)


# The families that have a file in adapters/dialects.
_DIALECTS = {file.stem for file in (Path(__file__).parent.parent / "adapters" / "dialects").glob("*.py")}


def _family(name: str, graph: str, *architectures: str) -> Family:
    return Family(
        name=name,
        graph=f"bringup.graphs.{name}:{graph}",
        config=f"bringup.graphs.{name}:{graph}Config",
        adapter=f"bringup.adapters.{name}:adapter",
        architectures=architectures,
        dialect=f"bringup.adapters.dialects.{name}:dialect" if name in _DIALECTS else None,
    )


FAMILIES: tuple[Family, ...] = (
    _family("bloom", "Bloom", "BloomForCausalLM", "BloomModel"),
    _family("deepseek_mtp", "DeepseekMtp"),
    _family("deepseek_v2", "DeepseekV2", "DeepseekV2ForCausalLM", "DeepseekV2Model"),
    _family("deepseek_v3", "DeepseekV3", "DeepseekV3ForCausalLM", "DeepseekV3Model"),
    _family("deepseek_v32", "DeepseekV32", "DeepseekV32ForCausalLM", "DeepseekV32Model"),
    _family("exaone", "Exaone", "ExaoneForCausalLM", "ExaoneModel"),
    _family("glm4_moe", "Glm4Moe", "Glm4MoeForCausalLM", "Glm4MoeModel"),
    _family("gpt2", "GPT2", "GPT2LMHeadModel", "GPT2Model"),
    _family("gpt_neox", "GPTNeoX", "GPTNeoXForCausalLM", "GPTNeoXModel"),
    _family("gpt_oss", "GptOss", "GptOssForCausalLM", "GptOssModel"),
    _family("internlm", "InternLM", "InternLMForCausalLM", "InternLMModel"),
    _family(
        "llama",
        "Llama",
        "LlamaForCausalLM",
        "LlamaModel",
        "LLaMAForCausalLM",  # of files from before transformers 4.28
        "MistralForCausalLM",
        "MistralModel",
        "MinistralForCausalLM",
    ),
    _family(
        "llava",
        "Llava",
        "LlavaForConditionalGeneration",
        "LlavaLlamaForCausalLM",
        "LlavaMistralForCausalLM",
        "LlavaQwenForCausalLM",
    ),
    _family("mixtral", "Mixtral", "MixtralForCausalLM", "MixtralModel"),
    _family("phi3", "Phi3", "Phi3ForCausalLM", "Phi3Model"),
    _family("qwen", "QWen", "QWenLMHeadModel", "QWenModel"),
    _family("qwen2", "Qwen2", "Qwen2ForCausalLM", "Qwen2Model"),
    _family("qwen3", "Qwen3", "Qwen3ForCausalLM", "Qwen3Model"),
    _family("qwen3_moe", "Qwen3Moe", "Qwen3MoeForCausalLM", "Qwen3MoeModel"),
)

# How far each family's logits are from transformers'; written by benchmarks/fidelity.py.
FIDELITY = Path(__file__).with_name("fidelity.json")

# Names that stand for a published config: model → (family, table in the family's graph file, Hub repository).
PRESETS: dict[str, tuple[str, str, str]] = {
    name: ("gpt2", "SIZES", f"openai-community/{name}") for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
}


def families(failed: list[BringupError] | None = None) -> Iterator[Family]:
    """Our own families, then those that installed packages offer (entry point group `bringup.models`).

    A plugin that cannot be loaded is left out; `failed` receives its error.
    """
    yield from FAMILIES
    for point in plugins.points(plugins.MODELS):
        try:
            yield plugins.load(point, Family)
        except BringupError as error:
            if failed is not None:
                failed.append(error)


def is_registered(model: str) -> bool:
    """Whether a word is the name of a model or a family: a file or folder of that name is then written `./NAME`."""
    if model in PRESETS or any(family.name == model for family in FAMILIES):
        return True
    return bool(plugins.points(plugins.MODELS, model)) or any(family.name == model for family in families())


def by_architecture(architectures: Sequence[str]) -> Family:
    """The family of the first known architecture of a config.json.

    Raises BU125 when none is known, BU126 when it is several installed packages that serve it.
    """
    known = {name: family for family in FAMILIES for name in family.architectures}
    for name in architectures:
        if name in known:
            return known[name]
    failed: list[BringupError] = []
    served = [family for family in families(failed) if set(family.architectures) & set(architectures)]
    if len(served) > 1:
        names = " and ".join(f"`{family.name}`" for family in served)
        raise fail("BU126", f"several families serve `{short(architectures[0])}`: {names}", help="name one as MODEL")
    if served:
        return served[0]
    said = ", ".join(f"`{short(name)}`" for name in architectures[:5]) or "nothing"
    hint = next((suggestion for name in architectures[:5] if (suggestion := did_you_mean(name, known))), "")
    raise _with_warnings(
        failed,
        code="BU125",
        message=f"no graph serves architecture {said}",
        help=hint or "`bringup models` lists what there is; docs/adding-a-model.md shows how to add one",
    )


def by_name(model: str) -> tuple[Family, dict[str, Any] | None, str | None]:
    """A model's name or Python file → its family, its published config and Hub repository (where it has them).

    Raises BU002 for an unknown name, BU004 for a file that defines no `family`.
    """
    if model.endswith(".py"):
        return _from_file(Path(model)), None, None
    if model in PRESETS:
        name, table, repository = PRESETS[model]
        family = next(family for family in FAMILIES if family.name == name)
        module = import_module(family.graph.partition(":")[0])
        return family, getattr(module, table)[model], repository
    return _family_of(model), None, None


def _family_of(name: str) -> Family:
    """The family of that name; of those that plugins offer first the one whose entry point is called so."""
    found = next((family for family in FAMILIES if family.name == name), None)
    for point in () if found else plugins.points(plugins.MODELS, name):
        loaded: Family = plugins.load(point, Family)
        found = found or (loaded if loaded.name == name else None)
    failed: list[BringupError] = []
    found = found or next((family for family in families(failed) if family.name == name), None)
    if found:
        return found
    hint = did_you_mean(name, [*PRESETS, *(family.name for family in families())]) or "see `bringup models`"
    if Path(name).exists():
        hint = f"`{name}` is a path: if it is a checkpoint, write --checkpoint {name}"
    raise _with_warnings(failed, code="BU002", message=f"there is no model `{name}`", help=hint)


def _with_warnings(failed: Sequence[BringupError], code: str, message: str, help: str) -> BringupError:
    """An error, with a warning for each plugin that could not be loaded: it may have been the one that was wanted."""
    warnings = [replace(finding, severity=Severity.WARNING) for error in failed for finding in error.findings]
    with_warnings = BringupError(Diagnostic(code=code, message=message, help=help), *warnings)
    with_warnings.__cause__ = failed[0] if len(failed) == 1 else ExceptionGroup("plugins", failed) if failed else None
    return with_warnings


def _from_file(path: Path) -> Family:
    if not path.is_file():
        raise fail("BU002", f"there is no model file `{path}`")
    try:
        module = userfiles.run(path)
    except SyntaxError as error:
        error.filename = error.filename or str(path)  # of what is no text Python does not say it
        raise
    family = getattr(module, "family", None)
    if not isinstance(family, Family):
        raise fail("BU004", f"`{path}` defines no `family`", help="see docs/adding-a-model.md: family = Family(…)")
    return family
