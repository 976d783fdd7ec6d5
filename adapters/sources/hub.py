"""Models of the Hugging Face hub, from the local cache first, then from the hub.

`hf://org/name[@revision]` is a repository with safetensors files or one GGUF file; `hf://org/name/FILE.gguf[@revision]`
is one of its GGUF files, such as a quantisation of several.

Cache layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache. huggingface_hub is imported
when a model has to be fetched.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from glob import escape
from pathlib import Path

from bringup.adapters.checkpoints.files import some
from bringup.adapters.sources.cache_dirs import hub_cache
from bringup.diagnostics import BringupError, did_you_mean, fail

SOURCE = re.compile(r"hf://((?:[\w.-]+/)?[\w.-]+?)(?:/([^@]+\.gguf))?(?:@([\w./-]+))?/?")
SMALL = ("*.json", "chat_template.jinja")  # beside the weights; in folders are the same for other programs: onnx/, …


def fetch_model(source: str) -> tuple[Path, str]:
    """A folder with the model's files or a GGUF file, and the commit it is of.

    Raises BU911, BU912, BU035, BU922, and BU218 for a repository with several GGUF files of which none is named.
    """
    match = SOURCE.fullmatch(source)
    if not match or ".." in source:
        help = "write hf://ORG/NAME, hf://ORG/NAME/FILE.gguf, or one of them with @REVISION behind it"
        raise fail("BU035", f"`{source}` does not name a model of the Hugging Face hub", help=help)
    name, file, revision = match[1], match[2] or "", match[3] or "main"
    folder = _cached(name, revision, file) or _download(name, revision, file)
    return folder / file, folder.name


def _model_cache(name: str) -> Path:
    return hub_cache() / f"models--{name.replace('/', '--')}"


def _cached(name: str, revision: str, file: str) -> Path | None:
    """The snapshot of a branch, tag or commit, if it has the file, or weights where none is named."""
    model = _model_cache(name)
    ref = model / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = model / "snapshots" / commit
    there = (snapshot / file).is_file() if file else any(_weights(path.name) for path in snapshot.glob("*"))
    return snapshot if there else None


def _weights(name: str) -> bool:
    return ".safetensors" in name or name.endswith(".gguf")


def _chosen(name: str, revision: str, file: str, there: list[str]) -> list[str]:
    """Which of a repository's files are fetched. Raises BU218, BU912."""
    top = [path for path in there if "/" not in path]
    small = [path for path in top if any(fnmatch(path, pattern) for pattern in SMALL)]
    if not file and any(path.endswith(".safetensors") for path in top):
        return [*small, *(path for path in top if path.endswith(".safetensors"))]
    ggufs = [path for path in there if path.endswith(".gguf")]
    at = "" if revision == "main" else f"@{revision}"
    if file and file not in ggufs:
        said = f"`{name}` at `{revision}` has no file `{file}`" + (f"; it has {some(ggufs, 20)}" if ggufs else "")
        guess = next(iter(ggufs), None)
        help = f"name one of its files: hf://{name}/{guess}{at}" if guess else "check the name and the revision"
        raise fail("BU912", said, help=did_you_mean(file, ggufs) or help)
    if not file and len(ggufs) > 1:
        raise fail(
            "BU218",
            f"`hf://{name}` has {len(ggufs)} GGUF files: {some(ggufs, 40)}",
            help=f"name one of them, such as hf://{name}/{ggufs[0]}{at}",
        )
    return [*small, *([file] if file else ggufs)]


def _download(name: str, revision: str, file: str) -> Path:
    """The snapshot, with the wanted files, fetched by huggingface_hub.

    Errors are told apart: no answer, or the hub said no.
    """
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
        there = huggingface_hub.HfApi().list_repo_files(name, revision=revision)
        wanted = [escape(path) for path in _chosen(name, revision, file, there)]
        folder = huggingface_hub.snapshot_download(  # pyright: ignore[reportUnknownMemberType]  tqdm's types
            name, revision=revision, cache_dir=hub_cache(), allow_patterns=wanted
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
