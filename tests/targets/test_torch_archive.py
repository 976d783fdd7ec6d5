"""`.pt2` files: torch itself reads what is saved, and nothing in torch stays replaced."""

from __future__ import annotations

from io import BytesIO
from zipfile import BadZipFile

import pytest
import torch
from torch._export.serde import serialize
from torch.export import Dim, ExportedProgram, export

from bringup.compile.targets.torch_archive import load_archive, save_archive


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).softmax(-1).cumsum(0)


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return export(Rows(), (torch.ones(4, 3), torch.ones(3, 5)), dynamic_shapes=({0: Dim("n", min=2, max=9)}, None))


def test_torch_reads_what_is_saved(program: ExportedProgram) -> None:
    inputs = torch.randn(7, 3), torch.randn(3, 5)
    saved = save_archive(program)
    for loaded in (torch.export.load(BytesIO(saved)), load_archive(BytesIO(saved))):
        assert torch.equal(loaded.module()(*inputs), Rows()(*inputs))
        assert str(loaded.graph) == str(program.graph)
        assert str(loaded.range_constraints) == str(program.range_constraints)


def test_values_are_those_that_torch_reads(program: ExportedProgram) -> None:
    """What each value is like, though values that are alike share a tensor: x @ y, softmax and cumsum here."""

    def values(loaded: ExportedProgram) -> list[torch.Tensor]:
        return [node.meta["val"] for node in loaded.graph.nodes if node.op != "output"]

    saved = save_archive(program)
    ours, theirs = values(load_archive(BytesIO(saved))), values(torch.export.load(BytesIO(saved)))
    assert list(map(_like, ours)) == list(map(_like, theirs))
    assert len({id(value) for value in ours}) == len(set(map(_like, ours))) == 3


def _like(value: torch.Tensor) -> str:
    return f"{value.shape} {value.stride()} {value.dtype} {value.device}"


def test_it_is_what_torch_saves(program: ExportedProgram) -> None:
    """But for example inputs, which the program itself still has."""
    inputs, program.example_inputs = program.example_inputs, None
    theirs = BytesIO()
    torch.export.save(program, theirs)
    program.example_inputs = inputs
    assert len(save_archive(program)) == len(theirs.getvalue())
    assert program.example_inputs is inputs


def test_nothing_in_torch_stays_replaced(program: ExportedProgram) -> None:
    def named() -> tuple[object, ...]:
        read = serialize.GraphModuleDeserializer.deserialize_tensor_meta
        return serialize.canonicalize, serialize.typing, read, torch._dynamo.config.fake_tensor_cache_enabled

    before = named()
    save_archive(program)
    with pytest.raises((RuntimeError, ValueError, BadZipFile)):
        load_archive(BytesIO(b"PK"))
    load_archive(BytesIO(save_archive(program)))
    assert named() == before
