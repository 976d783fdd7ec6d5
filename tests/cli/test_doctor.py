"""`bringup doctor`: what it finds, what it advises, and how it ends."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from bringup.cli.environment import health, machine
from tests.cli.conftest import Bringup

HEAVY = {
    "torch",
    "numpy",
    "rich",
    "iree.compiler",
    "iree.runtime",
    "transformers",
    "huggingface_hub",
    "tokenizers",
    "gguf",
}


def findings_of(bringup: Bringup, code: int = 0) -> dict:
    result = bringup("doctor", "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def problems(bringup: Bringup, code: int = 0) -> dict[str, dict[str, str]]:
    return {problem["message"]: problem for problem in findings_of(bringup, code)["problems"]}


def test_here_all_is_well(bringup: Bringup) -> None:
    found = findings_of(bringup)
    assert found["ok"]
    assert found["packages"]["torch"] == version("torch")
    assert found["devices"]["processor"].endswith(f"{len(os.sched_getaffinity(0))} cores")
    text = bringup("doctor").stdout
    for section in ("bringup", "packages", "devices", "places", "hub"):
        assert all(
            value in text for value in found[section].values() if "free" not in value and "available" not in value
        )


def test_it_imports_nothing_that_it_names() -> None:
    script = "import sys; from bringup.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, "doctor"], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.splitlines()[-1].split())


def test_a_missing_package(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    real = health.installed
    monkeypatch.setattr(health, "installed", lambda name: "" if name in ("torch", "transformers") else real(name))
    found = problems(bringup, 3)
    assert found["`torch` is not installed"] == {
        "severity": "error", "message": "`torch` is not installed", "fix": "pip install 'bringup[compile]'",
    }  # fmt: skip
    assert "`transformers` is not installed" not in found
    text = bringup("doctor").stdout
    assert "error: `torch` is not installed\n  = fix: pip install 'bringup[compile]'\n" in text
    assert text.endswith("\n1 problem\n")


def test_missing_packages_of_one_extra_are_one_problem(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    real, absent = health.installed, ("torch", "llvmlite", "gguf")
    monkeypatch.setattr(health, "installed", lambda name: "" if name in absent else real(name))
    assert len(problems(bringup, 3)) == 3
    text = bringup("doctor").stdout
    message = "error: `torch`, `llvmlite` and `gguf` are not installed"
    assert f"{message}\n  = fix: pip install 'bringup[compile]'\n" in text
    assert text.endswith("\n1 problem\n")


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    real = health.installed
    monkeypatch.setattr(health, "installed", lambda name: "" if name in absent else real(name))


COMPILERS = ("torch-mlir", "iree-base-compiler", "iree-base-runtime")
OF_COMPILE = (*COMPILERS, "torch", "tokenizers", "jinja2", "gguf")


@pytest.mark.parametrize("absent", [OF_COMPILE, COMPILERS])
def test_with_the_extra_llvm_alone(bringup: Bringup, monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...]) -> None:
    """A torch that another program needs does not change the result."""
    without(monkeypatch, *absent)
    found = findings_of(bringup, 0)
    assert (found["ok"], found["problems"]) == (True, [])
    features = found["features"]
    assert features["run bundles for cpu"] == features["check, inspect, convert"] == "works"
    assert features["compile, run other bundles"] == (
        f"not installed: {', '.join(name for name in ('torch', *COMPILERS) if name in absent)}; "
        "pip install 'bringup[compile]'"
    )


def test_without_any_extra(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, *OF_COMPILE, "llvmlite")
    found = findings_of(bringup, 3)
    assert found["features"]["check, inspect, convert"] == "works"
    assert found["features"]["run bundles for cpu"].startswith("not installed: llvmlite; ")
    assert {problem["severity"] for problem in found["problems"]} == {"error"}


def test_a_faulty_runner(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra [llvm] alone, a wrong version of llvmlite is an error, and one of torch a warning."""
    real, versions = health.installed, {"llvmlite": "0.40", "torch": "2.0"} | dict.fromkeys(COMPILERS, "")
    monkeypatch.setattr(health, "installed", lambda name: versions[name] if name in versions else real(name))
    found = findings_of(bringup, 3)
    assert {p["message"].partition("`")[2].partition("`")[0]: p["severity"] for p in found["problems"]} == {
        "llvmlite": "error", "torch": "warning",
    }  # fmt: skip
    assert found["features"]["run bundles for cpu"] == "unsure: see llvmlite below"


def test_another_version_than_was_tested(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    real = health.installed
    monkeypatch.setattr(health, "installed", lambda name: "2.10.1+cpu" if name == "torch" else real(name))
    ((message, problem),) = problems(bringup, 3).items()
    assert message == "`torch` is 2.10.1+cpu; bringup is tested with >=2.11,<2.14"
    assert problem["fix"] == "pip install 'torch>=2.11,<2.14'"


def test_metadata_without_files(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    real = health.find_spec
    monkeypatch.setattr(health, "find_spec", lambda name: None if name == "iree.compiler" else real(name))
    ((message, problem),) = problems(bringup, 3).items()
    assert message == "`iree-base-compiler` is installed, but its files are gone"
    assert problem["fix"].startswith("pip install --force-reinstall 'iree-base-compiler==")


@pytest.mark.parametrize(
    ("have", "wanted", "fits"),
    [
        ("2.13.0+cpu", ">=2.11,<2.14", True),
        ("2.14", ">=2.11,<2.14", False),
        ("2.14.0", "<2.14", False),
        ("2.9", ">=2.11", False),
        ("20261001", "==20261001", True),
        ("3.13.0", "==3.13", True),
        ("3.13.1", "==3.13.0", False),
        ("0.10", ">=0.9", True),
        ("1.0rc1", ">=1.0", True),
        ("5", "!=5.0", False),
        ("5", "<=5.0,>4", True),
        ("5", "", True),
    ],
)
def test_conditions_on_versions(have: str, wanted: str, fits: bool) -> None:
    assert health._fits(have, wanted) is fits


def test_places(bringup: Bringup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "cache/bringup/pypi"
    cache.mkdir(parents=True)
    (cache / "x.whl").write_bytes(bytes(3_000_000))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert findings_of(bringup)["places"]["cache"].startswith(f"{tmp_path}/cache/bringup (3.0 MB, ")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path / "cache/bringup"))
    ((message, problem),) = problems(bringup).items()
    assert message == f"`{tmp_path}/cache/bringup` cannot be written to"
    assert (problem["severity"], problem["fix"]) == ("warning", "set XDG_CACHE_HOME to a folder of yours")
    monkeypatch.setattr("bringup.system.os_errors.free_bytes", lambda place: 1_000_000)
    assert any(message.endswith(" has 1.0 MB free") for message in problems(bringup))


def test_a_token_is_never_shown(bringup: Bringup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
    assert findings_of(bringup)["hub"]["hugging face token"].startswith("none")
    (tmp_path / "token").write_text("hf_verysecret")
    assert findings_of(bringup)["hub"]["hugging face token"] == f"present, by {tmp_path / 'token'}"
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    result = bringup("doctor")
    assert "present, by HF_TOKEN" in result.output
    assert "verysecret" not in result.output


def test_offline(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert findings_of(bringup)["hub"]["offline"] == "yes, by TRANSFORMERS_OFFLINE"


def test_limits(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_AS: 8 * 10**9, resource.RLIMIT_NOFILE: 64}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits.get(kind, resource.RLIM_INFINITY), -1))
    found = problems(bringup)
    assert found["this shell limits address space to 8.0 GB"]["fix"] == "ulimit -v unlimited"
    assert (
        found["this shell lets a process open 64 files; a sharded checkpoint has hundreds"]["fix"] == "ulimit -n 4096"
    )


def test_the_locale(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getpreferredencoding", lambda do_setlocale=True: "ANSI_X3.4-1968")
    ((message, problem),) = problems(bringup).items()
    assert message == "the locale's encoding is ANSI_X3.4-1968, not UTF-8"
    assert problem["fix"] == "export LC_ALL=C.UTF-8"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine's /proc and /sys."""
    for name in ("PROC", "SYS"):
        monkeypatch.setattr(machine, name, tmp_path / name.lower())
    monkeypatch.setattr(machine, "LIBRARIES", ())
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def devices() -> dict[str, str]:
    return {fact.name: fact.value for fact in machine.devices()}


def test_a_machine_with_cards(kernel: Path) -> None:
    write(kernel / "proc/cpuinfo", "model name\t: Xeon\nflags\t\t: fpu avx avx2 amx_tile amx_bf16 avx512f\n")
    write(kernel / "proc/meminfo", "MemTotal:       1000000 kB\nMemAvailable:    500000 kB\n")
    write(kernel / "sys/fs/cgroup/memory.max", "100000000\n")
    write(kernel / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue\n")
    write(kernel / "proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n")
    write(kernel / "sys/class/kfd/kfd/topology/nodes/0/properties", "gfx_target_version 0\n")
    write(kernel / "sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 1\ngfx_target_version 90402\n")
    write(kernel / "sys/class/kfd/kfd/topology/nodes/2/properties", "gfx_target_version 90010\n")
    write(kernel / "rocm/lib/libamdhip64.so.7", "")
    found = devices()
    assert found["processor"].startswith("Xeon, ")
    assert found["instructions"] == "avx avx2 avx512f amx_tile amx_bf16"
    assert found["memory"] == "1.0 GB, 512.0 MB available, limited to 100.0 MB by its control group"
    assert found["nvidia"] == "NVIDIA H200, driver 570.86.15"
    assert found["amd"] == "gfx942, gfx90a, HIP runtime"
    assert any("only 100.0 MB of memory" in fact.problem for fact in machine.devices())


def test_a_machine_that_tells_nothing(kernel: Path) -> None:
    found = devices()
    assert (found["instructions"], found["nvidia"], found["amd"]) == ("unknown", "none", "none")
    assert not any(fact.problem for fact in machine.devices())


def test_an_arm_machine(kernel: Path) -> None:
    write(kernel / "proc/cpuinfo", "processor : 0\nFeatures\t: fp asimd asimddp sve i8mm bf16\n")
    assert devices()["instructions"] == "asimd asimddp i8mm bf16 sve"


def test_a_checkout_without_links(bringup: Bringup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As git leaves it where it may not make links: each is a file with the path in it."""
    root = Path(health.__file__).parents[3]
    write(tmp_path / "pyproject.toml", (root / "pyproject.toml").read_text("utf-8"))
    for name in ("graphs", "adapters", "compile"):
        write(tmp_path / "bringup" / name, f"../{name}")
    monkeypatch.setattr(health, "__file__", str(tmp_path / "bringup/cli/environment/health.py"))
    ((message, problem),) = problems(bringup).items()
    assert message == f"`{tmp_path}/bringup/graphs` is no link to a folder"
    assert problem["fix"].startswith(f"git -C {tmp_path} config core.symlinks true && ")
