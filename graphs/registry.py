"""The graph and the adapter of each model: an explicit table, imported on first use, each architecture once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bringup import plugins, userfiles
from bringup.diagnostics import BringupError, did_you_mean, fail
from bringup.graphs import model_folders
from bringup.graphs.family import Family
from bringup.nearest import nearest
from bringup.shown import short

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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


_EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
_GEMMA4 = (
    *("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4TextModel"),
    *("Gemma4UnifiedForConditionalGeneration", "Gemma4UnifiedForCausalLM", "Gemma4UnifiedTextModel"),
)
_LLAMA = (
    *("LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"),  # the last in files from before transformers 4.28
    *("MistralForCausalLM", "MistralModel", "MinistralForCausalLM"),
)
_LLAVA = (
    *("LlavaForConditionalGeneration", "LlavaLlamaForCausalLM", "LlavaMistralForCausalLM", "LlavaQwenForCausalLM"),
    "Mistral3ForConditionalGeneration",
)
_MISTRAL_LARGE4 = ("MistralLarge4ForConditionalGeneration", "MistralLarge4Model", "MistralLarge4TextModel")
_QWEN35_MOE = ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextModel")
FAMILIES: tuple[Family, ...] = (
    _family("bamba", "Bamba", "BambaForCausalLM", "BambaModel"),
    _family("bloom", "Bloom", "BloomForCausalLM", "BloomModel"),
    _family("deepseek_mtp", "DeepseekMtp"),
    _family("deepseek_v2", "DeepseekV2", "DeepseekV2ForCausalLM", "DeepseekV2Model"),
    _family("deepseek_v3", "DeepseekV3", "DeepseekV3ForCausalLM", "DeepseekV3Model"),
    _family("deepseek_v32", "DeepseekV32", "DeepseekV32ForCausalLM", "DeepseekV32Model"),
    _family("eagle3", "Eagle3", *_EAGLE3),
    _family("exaone", "Exaone", "ExaoneForCausalLM", "ExaoneModel"),
    _family("falcon_h1", "FalconH1", "FalconH1ForCausalLM", "FalconH1Model"),
    _family("gemma2", "Gemma2", "Gemma2ForCausalLM", "Gemma2Model"),
    _family("gemma3", "Gemma3", "Gemma3ForCausalLM", "Gemma3TextModel"),
    _family("gemma4", "Gemma4", *_GEMMA4),
    _family("glm4_moe", "Glm4Moe", "Glm4MoeForCausalLM", "Glm4MoeModel"),
    _family("glm4_moe_lite", "Glm4MoeLite", "Glm4MoeLiteForCausalLM", "Glm4MoeLiteModel"),
    _family("glm_moe_dsa", "GlmMoeDsa", "GlmMoeDsaForCausalLM", "GlmMoeDsaModel"),
    _family("gpt2", "GPT2", "GPT2LMHeadModel", "GPT2Model"),
    _family("gpt_neox", "GPTNeoX", "GPTNeoXForCausalLM", "GPTNeoXModel"),
    _family("gpt_oss", "GptOss", "GptOssForCausalLM", "GptOssModel"),
    _family("granitemoehybrid", "GraniteMoeHybrid", "GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"),
    _family("internlm", "InternLM", "InternLMForCausalLM", "InternLMModel"),
    _family("lfm2", "Lfm2", "Lfm2ForCausalLM", "Lfm2Model"),
    _family("lfm2_moe", "Lfm2Moe", "Lfm2MoeForCausalLM", "Lfm2MoeModel"),
    _family("llama", "Llama", *_LLAMA),
    _family("llama4", "Llama4", "Llama4ForConditionalGeneration", "Llama4ForCausalLM", "Llama4TextModel"),
    _family("llava", "Llava", *_LLAVA),
    _family("mimo_v2_flash", "MiMoV2Flash", "MiMoV2FlashForCausalLM", "MiMoV2FlashModel"),
    _family("minimax_m2", "MiniMaxM2", "MiniMaxM2ForCausalLM", "MiniMaxM2Model"),
    _family("ministral3", "Ministral3", "Ministral3ForCausalLM", "Ministral3Model"),
    _family("mistral4", "Mistral4", "Mistral4ForCausalLM", "Mistral4Model"),
    _family("mistral_large4", "MistralLarge4", *_MISTRAL_LARGE4),
    _family("mixtral", "Mixtral", "MixtralForCausalLM", "MixtralModel"),
    _family("nemotron_h", "NemotronH", "NemotronHForCausalLM", "NemotronHModel"),
    _family("olmo2", "Olmo2", "Olmo2ForCausalLM", "Olmo2Model"),
    _family("phi3", "Phi3", "Phi3ForCausalLM", "Phi3Model"),
    _family("qwen", "QWen", "QWenLMHeadModel", "QWenModel"),
    _family("qwen2", "Qwen2", "Qwen2ForCausalLM", "Qwen2Model"),
    _family("qwen2_moe", "Qwen2Moe", "Qwen2MoeForCausalLM", "Qwen2MoeModel"),
    _family("qwen3", "Qwen3", "Qwen3ForCausalLM", "Qwen3Model"),
    _family("qwen3_5", "Qwen3_5", "Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5TextModel"),
    _family("qwen3_5_moe", "Qwen3_5Moe", *_QWEN35_MOE),
    _family("qwen3_moe", "Qwen3Moe", "Qwen3MoeForCausalLM", "Qwen3MoeModel"),
    _family("qwen3_mtp", "Qwen3Mtp"),
    _family("qwen3_next", "Qwen3Next", "Qwen3NextForCausalLM", "Qwen3NextModel"),
)

# The error of each family's logits compared with transformers', written by benchmarks/fidelity.py.
DRAFT = "`bringup init --checkpoint SRC` drafts one; `bringup explain adding-a-model` has the next steps"
FIDELITY = Path(__file__).with_name("fidelity.json")

# Names of published configs: model → (family, table in the family's graph file, Hub repository).
PRESETS: dict[str, tuple[str, str, str]] = {
    name: ("gpt2", "SIZES", f"openai-community/{name}") for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
}


def families(failed: list[BringupError] | None = None) -> Iterator[Family]:
    """The built-in families, those of folders (BRINGUP_MODELS), then those of packages (entry points `bringup.models`).

    A plugin, or a module of one, that cannot be loaded is omitted; `failed` receives its error, and BU128 for a
    family with the name of an earlier one, which is omitted, or with an architecture of a built-in family.
    """
    seen = [*FAMILIES]
    yield from FAMILIES
    for place, family in _added(failed):
        if family in seen:
            continue
        hidden = _hidden(place, family, seen)
        if hidden and failed is not None:
            failed.append(hidden)
        if all(family.name != each.name for each in seen):
            seen.append(family)
            yield family


def _added(failed: list[BringupError] | None) -> Iterator[tuple[str, Family]]:
    """The families that are not built in, each with a description of its origin for messages."""
    for path, module in model_folders.modules(failed):
        if isinstance(family := getattr(module, "family", None), Family):
            yield f"`{path}`", family
    for point in plugins.points(plugins.MODELS):
        try:
            yield from ((f"plugin `{point.name}` (`{point.value}`)", family) for family in _offered(point, failed))
        except BringupError as error:
            if failed is not None:
                failed.append(error)


def _hidden(place: str, family: Family, seen: Sequence[Family]) -> BringupError | None:
    """BU128 for a family that has the name of an earlier one, or an architecture of a built-in one; else None."""
    if any(each.name == family.name for each in seen):
        message, help = f"a family `{family.name}` already exists and is used instead", "give it another name"
        return fail("BU128", f"the family `{family.name}` of {place} is not used: {message}", help=help)
    known = {name: each.name for each in FAMILIES for name in family.architectures if name in each.architectures}
    if not known or family.quantisations:
        return None
    name, ours = next(iter(known.items()))
    help = f"name it as MODEL; or give it `quantisations`, if it supports `{short(name)}` in a `quant_method` only"
    message = f"`{short(name)}` of the family `{family.name}` ({place}) is supported by bringup's `{ours}`"
    return fail("BU128", message, help=help)


def _offered(point: EntryPoint, failed: list[BringupError] | None = None) -> list[Family]:
    """The family that an entry point names; for a package or module, each `family` in it and its modules.

    Raises BU026 if there is none. `failed` receives an error for each module that cannot be loaded.
    """
    loaded = plugins.load(point, problem=_no_families)
    if isinstance(loaded, Family):
        return [loaded]
    found, broken = _families_in(loaded)
    if failed is not None:
        failed += [plugins.broken(point, f"has a module `{name}` that {message}") for name, message in broken.items()]
    return found


def _no_families(loaded: Any) -> str:
    if isinstance(loaded, Family):
        return ""
    if not isinstance(loaded, ModuleType):
        return f"is a {type(loaded).__name__}, not a Family"
    found, broken = _families_in(loaded)
    if found:
        return ""
    return next(iter(broken.values()), "is a package without a `family` in any module")


def _families_in(package: ModuleType) -> tuple[list[Family], dict[str, str]]:
    """The families of a package and its public modules; and, by module, the reason why one cannot be loaded."""
    listed = iter_modules(getattr(package, "__path__", []))
    names = sorted(module.name for module in listed if not module.ispkg and not module.name.startswith("_"))
    modules, broken = [package], dict[str, str]()
    for name in names:
        try:
            modules.append(import_module(f"{package.__name__}.{name}"))
        except (Exception, SystemExit) as error:  # any error of a plugin's module is reported as the plugin's
            broken[name] = f"cannot be loaded: {type(error).__name__}: {error}"
    found = (getattr(module, "family", None) for module in modules)
    return list({id(each): each for each in found if isinstance(each, Family)}.values()), broken  # they have no hash


def is_registered(model: str) -> bool:
    """Whether this is the name of a model or a family: a file or folder of that name is then written `./NAME`."""
    if model in PRESETS or any(family.name == model for family in FAMILIES):
        return True
    return bool(plugins.points(plugins.MODELS, model)) or any(family.name == model for family in families())


def by_architecture(architectures: Sequence[str], quantisation: str = "") -> Family:
    """The family of the first known architecture of a config.json, for weights with that `quant_method`.

    Raises BU125 if none is known, BU126 if several families of packages or of BRINGUP_MODELS support it, and the
    error of a package or folder that fails if no family supports it.
    """
    wanted = set(architectures)
    if quantisation:
        special = [f for f in families() if quantisation in f.quantisations and wanted & {*f.architectures}]
        if special:
            return _only(special, architectures)
    known = {name: family for family in FAMILIES for name in family.architectures}
    for name in architectures:
        if name in known:
            return known[name]
    failed: list[BringupError] = []
    served = [f for f in families(failed) if wanted & {*f.architectures} and not f.quantisations]
    if served:
        return _only(served, architectures)
    listed = ", ".join(f"`{short(name)}`" for name in architectures[:5])
    help = DRAFT if listed else "name the family as MODEL: `bringup models` lists them"
    hint = next((suggestion for name in architectures[:5] if (suggestion := _resembling(name, known))), "")
    raise plugins.not_found(
        failed,
        code="BU125",
        config_key="architectures",
        message=f"no graph supports the architecture {listed}" if listed else "config.json lists no `architectures`",
        help=f"{hint} if not, {DRAFT}" if hint else help,
    )


def _resembling(name: str, known: Collection[str]) -> str:
    """`did you mean` for an architecture, compared without a suffix such as ForCausalLM."""
    suffix = next((each for each in ("ForCausalLM", "LMHeadModel", "Model") if name.endswith(each)), "")
    names = [each.removesuffix(suffix) for each in known if each.endswith(suffix)]
    close = " or ".join(f"`{each}{suffix}`" for each in nearest(name.removesuffix(suffix), names))
    return f"did you mean {close}?" if close else ""


def _only(served: Sequence[Family], architectures: Sequence[str]) -> Family:
    if len(served) > 1:
        names = " and ".join(f"`{family.name}`" for family in served)
        raise fail("BU126", f"several families support `{short(architectures[0])}`: {names}", help="name one as MODEL")
    return model_folders.in_use(served[0])


def by_name(model: str) -> tuple[Family, dict[str, Any] | None, str | None]:
    """A model's name or Python file → its family, its published config and its Hub repository (None without).

    Raises BU002 for an unknown name, BU034 for a path without a file, BU004 for a file that defines no `family`.
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
    """The family of that name; among those of plugins, first that of the entry point of that name."""
    found = next((family for family in FAMILIES if family.name == name), None)
    if not found and (file := model_folders.named(name)):
        here = _from_file(file, userfiles.module_of)  # an error while it runs is raised
        found = here if here.name == name else None
    for point in () if found else plugins.points(plugins.MODELS, name):
        found = found or next((family for family in _offered(point) if family.name == name), None)
    failed: list[BringupError] = []
    found = found or next((family for family in families(failed) if family.name == name), None)
    if found:
        return model_folders.in_use(found)
    hint = did_you_mean(name, [*PRESETS, *(family.name for family in families())]) or "`bringup models` lists the names"
    if Path(name).exists():
        hint = f"`{name}` is a path: if it is a checkpoint, write --checkpoint {name}"
    elif name.startswith((".", "/")) or name.endswith(".bundle"):
        raise fail("BU034", f"no such file or folder: `{name}`", help="`bringup compile` writes a bundle")
    elif name.count("/") == 1:
        hint = f"if it is a repository of the Hugging Face hub, write --checkpoint hf://{name}"
    raise plugins.not_found(failed, code="BU002", message=f"unknown model `{name}`", help=hint)


def _from_file(path: Path, module_of: Callable[[Path], ModuleType] = userfiles.run) -> Family:
    if not path.is_file():
        raise fail("BU002", f"no such model file: `{path}`")
    try:
        module = module_of(path)
    except SyntaxError as error:
        error.filename = error.filename or str(path)  # Python omits it for a file that is not text
        raise
    family = getattr(module, "family", None)
    if not isinstance(family, Family):
        help = "write family = Family(…), as `bringup explain adding-a-model` shows"
        raise fail("BU004", f"`{path}` defines no `family`", help=help)
    return family
