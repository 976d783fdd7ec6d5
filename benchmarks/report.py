"""The complete report as Markdown."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.figures import QUIET, Result, agreement, speeds, spread, starts
from benchmarks.workers import LONG, SHORT
from bringup.system.processors import processors

PACKAGES = ("bringup", "torch", "transformers", "iree-base-compiler", "iree-base-runtime", "numpy")


def report(
    results: Sequence[Result], failures: Sequence[str], probes: Sequence[float], lengths: Sequence[int], seconds: float
) -> str:
    """`lengths` are those of the two decode runs, `probes` all bandwidths, `seconds` what everything took."""
    short, long = lengths
    rounds = max((len(result.turns) for result in results), default=0)
    sizes = {result.dtype: f"{result.dtype} {result.bytes_per_token / 1e6:.1f} MB" for result in results}
    loudest = max((turn.others for result in results for turn in result.turns), default=0.0)
    paragraphs = [
        f"GPT-2 small, seeded random weights, batch 1, {processors()} threads, {rounds} rounds. Median [least - most]. "
        f"Prefill of {LONG} tokens. Decode of {short} and of {long} tokens after a prompt of {SHORT}: "
        f"{long - short} / the difference in time. A decoded token reads {', '.join(sizes.values())} of weights. "
        "`bringup is` 2.00x: twice as fast, the median of the rounds' ratios.",
        speeds(results),
        f"Read bandwidth, between all turns: {spread(probes, '.1f')} GB/s; a turn's share is of the mean just before "
        f"and after it. Turns beside other processes that used over {QUIET:.0%} of the machine are dropped (most seen: "
        f"{loudest:.0%}); † none was quiet, so all were kept.",
        starts(results),
        "Compile: seconds of one whole process. torch.compile: until both its graphs (prefill of "
        f"{LONG}, decode) have run once, with an empty and then the filled cache folder. bringup: until the bundle "
        "(decode, prefill of 32 and 256) is written, with an empty and then the filled cache, and a bundle "
        "that is there needs none of it. Load: after the imports, until the first token after "
        f"{SHORT}, without torch.compile's compiling; page cache warm.",
        "\n".join(f"- {line}" for line in (*agreement(results), *failures)),
        f"{datetime.now():%Y-%m-%d %H:%M}, {seconds / 60:.1f} minutes. {_processor()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in PACKAGES)}.\n"
        f"`python {' '.join(sys.argv)}`",
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
