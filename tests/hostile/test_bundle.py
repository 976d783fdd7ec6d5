"""Hostile bundles: a manifest, weights and programs from somebody else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from bringup.compile.bundle.folder import SCHEMA, read_manifest
from bringup.compile.bundle.manifest import FORM
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.diagnostics import BringupError
from tests.hostile.headers import framed
from tests.hostile.test_config import GPT2
from tests.hostile.watch import watched


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    job = open_job(None, "dummy", config=GPT2)
    return build(job, out=folder / "b", target="torch", buckets=(16,))


@pytest.fixture
def bundle(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "b"))


def respelled(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def refused(bundle: Path) -> str:
    with pytest.raises(BringupError) as caught:
        bringup.load(bundle)
    codes = {finding.code for finding in caught.value.findings}
    assert caught.value.exit_code == 1
    (code,) = codes
    return code


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in the parts of a manifest that are read; of a list, its first item."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        if place[:1] not in (("config",), ("provenance",)) and (place or key in FORM):
            yield from places(inner, (*place, key))


def put(manifest: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        manifest = manifest[key]
    manifest[place[-1]] = value


def test_a_sound_bundle_runs(bundle: Path) -> None:
    session = bringup.load(bundle)
    assert len(list(session.generate([1, 2], max_new_tokens=3))) == 3


def test_the_wrong_type_in_every_field(bundle: Path) -> None:
    plain = (bundle / "manifest.json").read_text()
    tried = 0
    for place in places(json.loads(plain)):
        for value in ({"x": []}, [{}], 1.5, True, "\x1b[2J", -1, 1 << 70):
            manifest = json.loads(plain)
            old = manifest
            for key in place:
                old = old[key]
            if not place or type(old) is type(value) or (old is None and type(value) is str):
                continue
            put(manifest, place, value)
            (bundle / "manifest.json").write_text(json.dumps(manifest))
            with pytest.raises(BringupError) as caught:
                read_manifest(bundle)
            assert [finding.code for finding in caught.value.findings] == ["BU603"], (place, value)
            tried += 1
    assert tried > 300


def test_every_field_left_out(bundle: Path) -> None:
    plain = (bundle / "manifest.json").read_text()
    for place in places(json.loads(plain)):
        if (
            not place
            or isinstance(place[-1], int)
            or place[0]
            in (
                "files",
                "allow",
                "aliases",
                "adapter",
                "model_argument",
                "states_vary_past",
                "main_states",
                "target_options",
            )
            or place[-1] in ("rewindable", "max_input_len")
        ):
            continue
        manifest = json.loads(plain)
        inner = manifest
        for key in place[:-1]:
            inner = inner[key]
        del inner[place[-1]]
        (bundle / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(BringupError, match="BU603"):
            read_manifest(bundle)


NAMES = ["../b/manifest.json", "/etc/passwd", "a/../../x", "", ".", "a\0b", "x" * 300, "/".join("x" * 2000), "\ud800"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_files_outside_the_bundle(bundle: Path, name: str) -> None:
    respelled(bundle, lambda manifest: manifest["files"].update({name: "0" * 64}))
    assert refused(bundle) == "BU603"


SENSELESS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no context": lambda m: m.update(max_seq_len=0),
    "endless context": lambda m: m.update(max_seq_len=1 << 62),
    "no vocabulary": lambda m: m.update(vocab_size=-5),
    "no blocks": lambda m: m["interface"].update(max_blocks=0),
    "no entries": lambda m: m["interface"].update(entries=[]),
    "no functions": lambda m: m["interface"].update(functions=[]),
    "no decode": lambda m: m["interface"]["entries"][-1].update(name="decoder"),
    "two of a name": lambda m: m["interface"]["entries"].append(m["interface"]["entries"][0]),
    "another length": lambda m: m["interface"]["entries"][0].update(num_tokens=17),
    "a negative input": lambda m: m["interface"]["entries"][0]["calls"][-1].update(inputs=[-1]),
    "a negative size": lambda m: m["interface"]["states"][0].update(shape=[-1, 4]),
    "an endless state": lambda m: m["interface"]["states"][0].update(shape=[1 << 40, 1 << 40]),
    "a dtype that is none": lambda m: m["interface"]["states"][0].update(dtype="__class__"),
    "a dtype in blocks": lambda m: m["interface"]["weights"][0].update(dtype="q4_0"),
    "a function outside": lambda m: m["interface"]["functions"][0].update(name="../programs/epilogue"),
    "another schema": lambda m: m.update(schema=True),
    "a file that is not there": lambda m: m["files"].update({"extra": "0" * 64}),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_manifests_without_sense(bundle: Path, name: str) -> None:
    respelled(bundle, SENSELESS[name])
    assert refused(bundle) == "BU603"


MESSAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "older": (lambda m: m.update(schema=SCHEMA - 1), f"another version .*schema {SCHEMA - 1}, .* reads {SCHEMA}"),
    "newer": (lambda m: m.update(schema=SCHEMA + 1), "by another version of bringup"),
    "no schema": (lambda m: m.pop("schema"), "`manifest.json` has no schema"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_bundles_of_another_version(bundle: Path, name: str) -> None:
    change, message = MESSAGES[name]
    respelled(bundle, change)
    with pytest.raises(BringupError, match=message) as caught:
        read_manifest(bundle)
    assert "compile it again" in caught.value.findings[0].help


def test_a_manifest_that_was_cut(bundle: Path) -> None:
    file = bundle / "manifest.json"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(BringupError, match=r"BU603.* `manifest.json` is not readable: "):
        read_manifest(bundle)


def test_a_bundle_or_a_lora_in_place_of_a_checkpoint(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BringupError, match=r"BU127.* it is a bundle, not a checkpoint"):
        open_job(None, bundle)
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    (tmp_path / "lora" / "adapter_model.safetensors").write_bytes(framed({}))
    with pytest.raises(BringupError, match=r"BU127.* it is a LoRA, not a model"):
        open_job(None, tmp_path / "lora")
    result = CliRunner().invoke(cli, ["check", str(bundle)])
    assert (result.exit_code, "is a bundle, not a model" in result.output) == (2, True)


def test_manifests_that_are_no_files(bundle: Path) -> None:
    (bundle / "manifest.json").unlink()
    os.mkfifo(bundle / "manifest.json")
    assert refused(bundle) == "BU603"
    (bundle / "manifest.json").unlink()
    (bundle / "manifest.json").symlink_to("manifest.json")
    assert refused(bundle) == "BU603"


TEXTS = {
    "deep": b'{"schema": 4, "x": %s' % (b"[" * 1_000_000),
    "deep enough": b'{"schema": 4, "x": %s0%s}' % (b"[" * 70, b"]" * 70),
    "not utf-8": b'{"schema": "\xff"}',
    "digits": b'{"schema": %s}' % (b"1" * 1_000_000),
    "large": b'{"schema": "%s"}' % (b"x" * 40_000_000),
    "many": b'{"schema": [%s]}' % (b"[]," * 3_000_000),
}


@pytest.mark.parametrize("name", TEXTS)
def test_manifest_bombs(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifest.json").write_bytes(TEXTS[name])
    assert refused(tmp_path) == "BU603"


def test_weights_of_another_model(bundle: Path) -> None:
    (bundle / "weights.safetensors").write_bytes(framed({}))
    assert refused(bundle) == "BU609"


@pytest.mark.parametrize("data", [b"", b"\0" * 7, bytes(range(256)) * 9], ids=["nothing", "zeros", "bytes"])
def test_weights_that_are_none(bundle: Path, data: bytes) -> None:
    (bundle / "weights.safetensors").write_bytes(data)
    assert refused(bundle) == "BU211"


def test_weights_that_were_cut(bundle: Path) -> None:
    with (bundle / "weights.safetensors").open("r+b") as file:
        file.truncate((bundle / "weights.safetensors").stat().st_size - 100)
    assert refused(bundle) == "BU208"


@pytest.mark.parametrize("data", [None, b"", bytes(range(256)) * 90], ids=["missing", "empty", "bytes"])
def test_a_module_that_is_none(bundle: Path, data: bytes | None) -> None:
    respelled(bundle, lambda manifest: manifest.update(target="iree-cpu"))
    if data is not None:
        (bundle / "module.vmfb").write_bytes(data)
    assert refused(bundle) == "BU603"


@pytest.mark.parametrize("data", [None, b"", bytes(range(256)) * 90], ids=["missing", "empty", "bytes"])
def test_programs_that_are_none(bundle: Path, data: bytes | None) -> None:
    for path in (bundle / "programs").iterdir():
        path.unlink()
        if data is not None:
            path.write_bytes(data)
    assert refused(bundle) == "BU603"


def test_run_says_it_in_one_error(bundle: Path) -> None:
    respelled(bundle, lambda manifest: manifest.update(vocab_size="\x1b[2J"))
    seen = watched("run", bundle, "--tokens", "1,2")
    assert seen.code == 1
    assert seen.err.count("error[BU603]") == 1
    assert "1 error" in seen.err
    assert "Traceback" not in seen.err
    assert "\x1b" not in seen.err
    assert seen.megabytes < 200


def test_a_state_with_too_few_rows(bundle: Path) -> None:
    """A step would write past its end."""
    respelled(bundle, lambda manifest: manifest["interface"].update(num_blocks=manifest["interface"]["num_blocks"] + 9))
    assert refused(bundle) == "BU603"


def test_a_context_that_the_blocks_do_not_hold(bundle: Path) -> None:
    respelled(bundle, lambda manifest: manifest.update(max_seq_len=1 << 20))
    assert refused(bundle) == "BU603"
