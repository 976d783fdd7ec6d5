"""`python compile_max.py CHECKPOINT [edited]`: GPT-2 in MAX's Python API, until its graph has run once."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from faults_max import load

FORWARD = "        x = x + self.attn(self.ln_1(x))\n        return x + self.mlp(self.ln_2(x))\n\n\nclass GPT2("
EDITED = FORWARD.replace("x + self.attn", "x + 1.5 * self.attn")


def main() -> None:
    source = Path(__file__).with_name("faults_max_graphs.py").read_text("utf-8")
    assert FORWARD in source
    with TemporaryDirectory(prefix="bringup-bench-") as folder:
        graphs = Path(folder, "graphs.py")
        graphs.write_text(source.replace(FORWARD, EDITED) if sys.argv[2:] == ["edited"] else source, "utf-8")
        load(Path(sys.argv[1]), str(graphs))


if __name__ == "__main__":
    main()
