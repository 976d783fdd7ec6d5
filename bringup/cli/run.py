"""`bringup run`: text, or token ids, from a bundle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from bringup.cli.tokens import TOKENS, Writer, tokenizer_of

SPEEDS = ("prefill_tokens_per_s", "decode_tokens_per_s", "load_seconds")


@click.command("run")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--prompt", metavar="TEXT")
@click.option("--tokens", type=TOKENS, metavar="IDS", help="Token ids instead of a prompt: 1,2,3.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True, metavar="N")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, metavar="T")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="P")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="S")
@click.option("--executor", metavar="NAME", help="What runs it, where the target leaves a choice.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of streamed text.")
def command(
    bundle: Path, prompt: str | None, tokens: list[int] | None, max_new_tokens: int, temperature: float,
    top_p: float, seed: int, executor: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Generate from BUNDLE. Text goes to stdout, everything else to stderr."""
    if (prompt is None) == (tokens is None):
        raise click.UsageError("give either --prompt TEXT or --tokens 1,2,3")
    from bringup.compile.session import load
    from bringup.render.progress import StageLines

    lines = StageLines()
    with lines.stage(f"Loading {bundle}"):
        session = load(bundle, executor)
    weights = session.manifest["weights"]
    if weights == "dummy":
        print("note: the weights are seeded dummies; what they say means nothing", file=sys.stderr)
    tokenizer = tokenizer_of(session, required=prompt is not None)
    ids = tokenizer.encode(prompt) if tokenizer and prompt is not None else tokens or []
    writer = Writer(tokenizer, quiet=as_json)
    for token in session.generate(
        ids, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed,
        eos=tokenizer.eos if tokenizer else frozenset(),
    ):  # fmt: skip
        writer.push(token)
    writer.finish()
    speeds: dict[str, float] = {name: getattr(session.stats, name) for name in SPEEDS}
    if as_json:
        print(json.dumps({"tokens": writer.tokens, "text": writer.text, **speeds, "weights": weights}))
    prefill, decode, _ = (f"{speed:,.1f} tokens/s" for speed in speeds.values())
    lines.say("Generated", f"{len(writer.tokens)} tokens; prefill {prefill}, decode {decode}")
