"""Models of the Hugging Face hub: `hf://org/name[@revision]`, from the local cache first, then from the hub.

Cache layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache. huggingface_hub is imported
when a model has to be fetched.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from bringup.adapters.readers.cache import hub_cache
from bringup.diagnostics import BringupError, fail

SOURCE = re.compile(r"hf://((?:[\w.-]+/)?[\w.-]+?)(?:@([\w./-]+))?/?")
WANTED = ["*.safetensors", "*.json", "chat_template.jinja"]
UNWANTED = ["*/*"]  # the same weights for other programs: original/, onnx/, …


def fetch_model(source: str) -> tuple[Path, str]:
    """A folder with the model's files, and the commit they are of. Raises BU911, BU912, BU035, BU922."""
    match = SOURCE.fullmatch(source)
    if not match or ".." in source:
        help = "write hf://ORG/NAME or hf://ORG/NAME@REVISION"
        raise fail("BU035", f"`{source}` does not name a model of the Hugging Face hub", help=help)
    name, revision = match[1], match[2] or "main"
    cached = _cached(name, revision)
    folder = cached or _download(name, revision)
    return folder, folder.name


def _model_cache(name: str) -> Path:
    return hub_cache() / f"models--{name.replace('/', '--')}"


def _cached(name: str, revision: str) -> Path | None:
    """The snapshot of a branch, tag or commit, if it has weights."""
    model = _model_cache(name)
    ref = model / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = model / "snapshots" / commit
    return snapshot if any(snapshot.glob("*.safetensors*")) or any(snapshot.glob("*.gguf")) else None


def _download(name: str, revision: str) -> Path:
    """The snapshot, fetched by huggingface_hub. Errors are told apart: no answer, or the hub said no."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise _unreachable(name, revision, "HF_HUB_OFFLINE is set")
    try:
        import huggingface_hub
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = "is not installed" if missing else f"cannot be loaded: {_first_line(error)}"
        raise fail(
            "BU922",
            f"`{name}` is not in `{_model_cache(name)}`, and huggingface_hub, which would fetch it, {why}",
            help="run: pip install 'bringup[hub]'",
        ) from None
    http_error: type[Exception] = HfHubHTTPError.__bases__[0]  # whichever HTTP library it uses
    try:
        folder = huggingface_hub.snapshot_download(  # pyright: ignore[reportUnknownMemberType]  tqdm's types
            name, revision=revision, cache_dir=hub_cache(), allow_patterns=WANTED, ignore_patterns=UNWANTED
        )
    except (ConnectionError, TimeoutError, EntryNotFoundError, http_error) as error:
        said = next((cause for cause in _causes(error) if isinstance(cause, HfHubHTTPError)), None)
        if said is None or _is_passing(said.response.status_code):
            raise _unreachable(name, revision, _first_line(said or _causes(error)[-1])) from None
        raise fail(
            "BU912",
            f"the Hugging Face hub refuses `{name}` at `{revision}`: {_first_line(said)}",
            help="check the name and the revision; for a gated or private model run: hf auth login",
        ) from None
    return Path(folder)


def _causes(error: BaseException) -> list[BaseException]:
    """An exception and those it was raised from."""
    found = [error]
    while cause := found[-1].__cause__ or found[-1].__context__:
        found.append(cause)
    return found


def _is_passing(status: int) -> bool:
    """Whether an HTTP status is one of a server in trouble, or asks to come again later (RFC 6585, RFC 9110)."""
    return status == 429 or status >= 500


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _unreachable(name: str, revision: str, why: str) -> BringupError:
    at = "" if revision == "main" else f" --revision {revision}"
    return fail(
        "BU911",
        f"`{name}` is not in `{_model_cache(name)}`, and the Hugging Face hub cannot be reached: {why}",
        help=f"on a machine with a network run: hf download {name}{at}, and copy that folder here",
    )
