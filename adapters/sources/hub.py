"""Models of the Hugging Face Hub, from the local cache or from the hub; and of ModelScope.

`hf://org/name[@revision]` is a repository with safetensors or torch files or one GGUF file;
`hf://org/name/FILE.gguf[@revision]` is one of its GGUF files, such as a quantisation of several; FILE may have `*`.

Cache layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache. huggingface_hub is imported when a model
has to be fetched into that cache. A check reads headers only, by ranges, and neither needs it nor caches anything.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.folder_layout import TORCH_SUFFIXES, is_training_file
from bringup.adapters.sources.cache_dirs import cache_folder, hub_cache
from bringup.adapters.sources.remote.client import is_offline
from bringup.adapters.sources.remote.opening import Open, open_repository
from bringup.adapters.sources.remote.repository import chosen_files, hub_repository, modelscope_repository
from bringup.diagnostics import BringupError, fail

SOURCE = re.compile(r"((?:[\w.-]+/)?[\w.-]+?)(?:/([^@]+\.gguf))?(?:@([\w./-]+))?/?")
HUB, MODELSCOPE = "hf://", "modelscope://"
_TITLES = {HUB: "the Hugging Face hub", MODELSCOPE: "ModelScope"}


def fetch_model(source: str) -> tuple[Path, str]:
    """A folder with the model's files or a GGUF file, and its commit.

    Raises BU911, BU912, BU035, BU922, and BU218 for a repository with several GGUF files if none is named.
    """
    name, file, revision = _parts(source, HUB)
    folder = _cached(name, revision, file) or _download(name, revision, file)
    if "*" in file:
        file = str(next(folder.glob(file)).relative_to(folder))
    return folder / file, folder.name


def open_model(src: str, open_path: Open, *, headers_only: bool, download_dir: Path | None) -> Checkpoint:
    """A model of the Hugging Face Hub or of ModelScope: from the cache, from its headers alone, or downloaded.

    Raises BU911, BU912, BU035, BU922, BU218.
    """
    scheme = MODELSCOPE if src.startswith(MODELSCOPE) else HUB
    name, file, revision = _parts(src, scheme)
    if scheme == HUB and download_dir is None:
        there = _cached(name, revision, file)
        if there or not headers_only:
            path, commit = (there / file, there.name) if there else fetch_model(src)
            return open_path(path, src, {"revision": commit})
    if is_offline():
        raise _unreachable(name, revision, "HF_HUB_OFFLINE is set")
    with _explained(scheme, name, revision):
        found = hub_repository(name, revision) if scheme == HUB else modelscope_repository(name, revision)
        place = download_dir or cache_folder("downloads") / scheme.rstrip(":/") / name / found.commit
        names = chosen_files(f"{scheme}{name}", revision, file, found.folder.names)
        return open_repository(found, names, src, open_path, headers_only=headers_only, place=place)


@contextmanager
def _explained(scheme: str, name: str, revision: str) -> Generator[None]:
    """Reports no answer as BU911 and a rejected request as BU912, with the fix for a model of the hub."""
    try:
        yield
    except BringupError as error:
        finding = error.findings[0]
        if finding.code == "BU913":
            raise _unreachable(name, revision, finding.message) from None
        if finding.code != "BU914":
            raise
        help = "check the name and the revision; for a gated or private model run: hf auth login"
        message = f"{_TITLES[scheme]} refuses `{name}` at `{revision}`: {finding.message}"
        raise fail("BU912", message, help=help) from None


def _parts(source: str, scheme: str) -> tuple[str, str, str]:
    """Name, file and revision of SCHEME://ORG/NAME[/FILE.gguf][@REVISION]. Raises BU035."""
    match = SOURCE.fullmatch(source.removeprefix(scheme))
    if not match or ".." in source:
        help = f"write {scheme}ORG/NAME, {scheme}ORG/NAME/FILE.gguf, or one of them followed by @REVISION"
        raise fail("BU035", f"`{source}` does not name a model of {_TITLES[scheme]}", help=help)
    return match[1], match[2] or "", match[3] or ("main" if scheme == HUB else "master")


def _model_cache(name: str) -> Path:
    return hub_cache() / f"models--{name.replace('/', '--')}"


def _cached(name: str, revision: str, file: str) -> Path | None:
    """The snapshot of a branch, tag or commit, if it has the file, or weights if no file is named."""
    model = _model_cache(name)
    ref = model / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = model / "snapshots" / commit
    there = (snapshot / file).is_file() if file else any(_weights(path.name) for path in snapshot.glob("*"))
    return snapshot if there else None


def _weights(name: str) -> bool:
    torch = name.endswith(TORCH_SUFFIXES) and not is_training_file(name)
    return torch or ".safetensors" in name or name.endswith((".gguf", ".bin.index.json"))


def _download(name: str, revision: str, file: str) -> Path:
    """The snapshot with the requested files, downloaded by huggingface_hub.

    bringup's own client lists the files, because it detects a missing network sooner. Raises BU911, BU912, BU922.
    """
    if is_offline():
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
    with _explained(HUB, name, revision):
        there = hub_repository(name, revision).folder.names
        wanted = [escape(path) for path in chosen_files(f"{HUB}{name}", revision, file, there)]
    try:
        folder = huggingface_hub.snapshot_download(  # pyright: ignore[reportUnknownMemberType]  tqdm's types
            name, revision=revision, cache_dir=hub_cache(), allow_patterns=wanted
        )
    except (ConnectionError, TimeoutError, EntryNotFoundError, http_error) as error:
        refusal = next((cause for cause in _causes(error) if isinstance(cause, HfHubHTTPError)), None)
        if refusal is None or _is_passing(refusal.response.status_code):
            raise _unreachable(name, revision, _first_line(refusal or _causes(error)[-1])) from None
        raise fail(
            "BU912",
            f"the Hugging Face hub refuses `{name}` at `{revision}`: {_first_line(refusal)}",
            help="check the name and the revision; for a gated or private model run: hf auth login",
        ) from None
    return Path(folder)


def _causes(error: BaseException) -> list[BaseException]:
    """An exception and those that it was raised from."""
    found = [error]
    while cause := found[-1].__cause__ or found[-1].__context__:
        found.append(cause)
    return found


def _is_passing(status: int) -> bool:
    """Whether an HTTP status is a temporary server error, or asks to retry later (RFC 6585, RFC 9110)."""
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
