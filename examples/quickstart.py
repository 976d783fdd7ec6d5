"""GPT-2 with seeded dummy weights: check, compile, run. Pass a folder to use a real checkpoint."""

import sys
import tempfile
from pathlib import Path

import bringup


def main(checkpoint: str = "dummy") -> None:
    job = bringup.open_job("gpt2", checkpoint)
    report = bringup.check(job)
    print(f"{len(job.plan.entries)} parameters, {len(report.findings)} findings")
    with tempfile.TemporaryDirectory() as folder:
        bundle = bringup.build(job, out=Path(folder) / "gpt2.bundle", max_seq_len=128)
        session = bringup.load(bundle)
        print(list(session.generate([15496, 11], max_new_tokens=8)))


if __name__ == "__main__":
    main(*sys.argv[1:])
