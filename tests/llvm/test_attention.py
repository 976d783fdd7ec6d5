"""Attention on the CPU against float64 by numpy, query by query."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.kernels.attention import Case, data_of
from tests.llvm.native import MACHINES, run

# Largest |difference| over largest |result|: sums of float32 in another order; narrower results are rounded.
TOLERANCES = {"float32": 2e-6, "bfloat16": 4e-3, "float16": 5e-4}
CASES = {
    "decode": Case(lengths=(77,)),
    "decode_contiguous": Case(lengths=(150,), contiguous=True, query_part=5),
    "decode_one_key": Case(lengths=(1,)),
    "decode_batch": Case(lengths=(1, 64, 65, 130), heads=6, groups=2),
    "decode_odd_channels": Case(lengths=(100,), heads=20, groups=1, channels=23, values=41),
    "decode_window": Case(lengths=(20, 64, 150), window=33),
    "decode_chunk": Case(lengths=(20, 64, 150, 99, 100), window=33, chunked=True),
    "decode_ring_of_chunk": Case(lengths=(20, 151, 500), window=50, chunked=True, ring=128, blocks=8),
    "decode_ring": Case(lengths=(20, 64, 150, 500), window=50, ring=128, blocks=8),
    "decode_first_ring": Case(lengths=(500,), window=50, ring=128, blocks=8, contiguous=True),
    "decode_sinks": Case(lengths=(70, 3), has_sinks=True),
    "decode_alibi": Case(lengths=(70, 140), has_slopes=True),
    "decode_softcap": Case(lengths=(70,), softcap=3.0),
    "decode_bfloat16": Case(lengths=(77, 130), dtype="bfloat16", channels=64),
    "decode_odd_bfloat16": Case(lengths=(67, 5), dtype="bfloat16", heads=9, groups=3, channels=63, values=91),
    "decode_one_channel": Case(lengths=(70,), dtype="bfloat16", channels=1, values=3),
    "decode_large_head": Case(lengths=(70,), dtype="bfloat16", heads=12, groups=1, channels=192, values=512),
    "decode_float16": Case(lengths=(77, 130), dtype="float16", channels=20, values=12),
    "decode_chosen": Case(lengths=(77, 1, 130), has_chosen=True, channels=19),
    "decode_mixed": Case(lengths=(77, 130), dtype="float32", cache="bfloat16"),
    "spans": Case(lengths=(1100,), blocks=18, contiguous=True),
    "spans_batch": Case(lengths=(1, 512, 513, 700), heads=6, groups=2, dtype="bfloat16", channels=24, blocks=11),
    "spans_ring": Case(lengths=(700, 90), window=600, ring=640, blocks=30, has_sinks=True, has_slopes=True),
    "spans_chunk": Case(lengths=(1101, 1100, 90), window=550, chunked=True, blocks=18),
    "spans_chosen": Case(lengths=(600, 40), has_chosen=True, channels=19, values=9, softcap=3.0, blocks=10),
    "prefill": Case(lengths=(37,), new=(37,)),
    "prefill_one_token": Case(lengths=(1,), new=(1,), padding=31),
    "prefill_contiguous": Case(lengths=(100,), new=(40,), contiguous=True, query_part=8, padding=3),
    "prefill_ragged": Case(lengths=(5, 64, 33), new=(5, 64, 33), padding=26, heads=3, groups=3, channels=7, values=9),
    "prefill_later": Case(lengths=(70, 130, 64), new=(6, 66, 1)),
    "prefill_no_token": Case(lengths=(9, 0, 9), new=(9, 0, 9), padding=5, heads=2, groups=1, channels=24, values=40),
    "prefill_window": Case(lengths=(70, 130), new=(70, 40), window=17),
    "prefill_chunk": Case(lengths=(70, 130), new=(70, 40), window=17, chunked=True),
    "prefill_ring_of_chunk": Case(lengths=(300, 30, 129), new=(20, 30, 3), window=50, chunked=True, ring=128, blocks=5),
    "prefill_ring": Case(lengths=(300, 30, 129), new=(20, 30, 3), window=50, ring=128, blocks=5),
    "prefill_sinks": Case(lengths=(70, 3), new=(70, 3), has_sinks=True),
    "prefill_alibi": Case(lengths=(70, 140), new=(30, 40), has_slopes=True),
    "prefill_softcap": Case(lengths=(70,), new=(70,), softcap=3.0),
    "prefill_bfloat16": Case(lengths=(130, 64), new=(130, 30), dtype="bfloat16", channels=64),
    "prefill_odd_bfloat16": Case(lengths=(70, 33), new=(66, 3), dtype="bfloat16", channels=63, values=91),
    "prefill_one_channel": Case(lengths=(70,), new=(35,), dtype="bfloat16", channels=1, values=3),
    "prefill_large_head": Case(lengths=(70,), new=(40,), dtype="bfloat16", groups=1, channels=192, values=512),
    "prefill_mixed": Case(lengths=(77, 130), new=(40, 9), dtype="float32", cache="bfloat16"),
    "prefill_chosen": Case(lengths=(70, 20), new=(33, 20), padding=4, has_chosen=True),
    "prefill_float16": Case(lengths=(70, 64), new=(70, 30), dtype="float16", channels=20, has_sinks=True),
}
ON_EACH = (  # instruction set that runs here
    "decode_odd_channels",
    "decode_bfloat16",
    "decode_odd_bfloat16",
    "decode_float16",
    "decode_mixed",
    "spans_batch",
    "prefill_ragged",
    "prefill_bfloat16",
    "prefill_odd_bfloat16",
    "prefill_mixed",
    "prefill_float16",
)
OFTEN = ("decode_odd_channels", "decode_odd_bfloat16", "prefill_ragged", "prefill_odd_bfloat16")  # in `make test`


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        *((name, "host") for name in CASES),
        *(
            pytest.param(*each, marks=() if each[0] in OFTEN else pytest.mark.slow)
            for each in product(ON_EACH, MACHINES)
            if each[1] != "host"
        ),
    ],
)
def test_every_query_gets_its_share_of_the_values(name: str, machine: str) -> None:
    """One thread, and more than there are pieces of work, give the same bits."""
    case = CASES[name]
    data = data_of(case)
    found = [run(data.graph, data.buffers, machine, threads).read("out") for threads in (1, 3, 64)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.uint8), other.view(np.uint8))
    rows, padding = found[0][: len(data.expected)], found[0][len(data.expected) :]
    assert np.isfinite(padding.astype(np.float64)).all()
    worst = np.abs(rows.astype(np.float64) - data.expected).max() / np.abs(data.expected).max()
    assert worst <= TOLERANCES[case.dtype]
