"""Products with packed weights in one thread, for each form, compared with reading the same bytes.

    python -m benchmarks.packed
    python -m benchmarks.packed --forms q4_1 q8_0 --activations int8 --rows 1 --rounds 25

A round runs each form once, and reads as many bytes before and after, by numpy's XOR. Times are processor times, so
other programs affect them only by the memory bandwidth that they use.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

import numpy as np

from benchmarks.one_thread import processor_seconds
from tests.llvm.products import Product

# Names of tests/llvm/products.py, with those by which a checkpoint's forms are known.
FORMS = {
    **{name: name for name in ("q4_0", "q4_1", "q4_k", "q6_k", "mxfp4", "nf4")},
    **{"q8_0": "int8-groups", "int8": "int8-rows", "int4-g32": "int4", "int4-g128, zeros": "int4-128"},
    "fp8 in blocks": "fp8-blocks",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--activations", nargs="+", choices=["float", "int8"], default=["float", "int8"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=32768)
    parser.add_argument("--rows", type=int, default=1, help="of activations")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print("| form | activations | kernel | MB | GB/s, the fastest | share of the read, median |")
    print("|---|---|---|---|---|---|")
    for form in options.forms:
        for activations in options.activations:
            print(_row(options, form, activations), flush=True)


def _row(options: Any, form: str, activations: str) -> str:
    product = Product(
        FORMS[form], options.rows, columns=options.columns, channels=options.channels, dtype=options.dtype,
        activations=activations.replace("float", ""), checked=False,
    )  # fmt: skip
    run = product.prepared()
    size = product.weight.nbytes
    words = np.ones(size // 8, np.uint64)

    def read() -> object:
        return np.bitwise_xor.reduce(words)

    run()
    reads, times, shares = [processor_seconds(read)], list[float](), list[float]()
    for _ in range(options.rounds):
        times.append(processor_seconds(run))
        reads.append(processor_seconds(read))
        shares.append((reads[-2] + reads[-1]) / 2 / times[-1])
    figures = f"{size / 1e6:.1f} | {size / min(times) / 1e9:.1f} | {median(shares):.2f}"
    return f"| {form} | {activations} | {product.stem()} | {figures} |"


if __name__ == "__main__":
    main()
