"""`compile --force` over a bundle, ended at random moments: what stands there is always whole, the old or the new."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.resources.compiles import Nursery, names, processes_on, temporary, tokens_of

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
GRACE = 10.0  # seconds within which children of a process that was killed are gone


class Trial:
    """One place, and bundles of two checkpoints that take turns there."""

    def __init__(self, nursery: Nursery, checkpoints: list[Path], folder: Path) -> None:
        self.nursery, self.folder, self.out = nursery, folder, folder / "b"
        folder.mkdir()
        self.turns = itertools.cycle(checkpoints)
        self.seconds: dict[tuple[str, bool], float] = {}
        self.caches = itertools.count()
        self.counts: Counter[str] = Counter()

    def words(self, target: str, checkpoint: Path) -> list[str | Path]:
        return ["compile", "--checkpoint", checkpoint, "--target", target, "-o", self.out, "--force"]

    def environment(self, *, cold: bool) -> dict[str, str]:
        cache = self.folder.parent / (f"cold{next(self.caches)}" if cold else "warm")
        return {"XDG_CACHE_HOME": str(cache)}

    def whole(self, target: str, *, cold: bool) -> tuple[Path, list[int]]:
        """A compile that nobody disturbs removes what others left. Gives the checkpoint, and what its bundle says."""
        checkpoint = next(self.turns)
        ended = self.nursery.run(*self.words(target, checkpoint), environment=self.environment(cold=cold))
        assert ended.code == 0, ended.said
        assert names(self.folder) == ["b"]
        self.seconds[target, cold] = ended.seconds
        return checkpoint, tokens_of(self.out)

    def killed(self, target: str, moment: float, sent: signal.Signals, *, cold: bool) -> Path:
        """Sends a signal after a share of the duration, and gives the checkpoint that was compiled."""
        checkpoint = next(self.turns)
        words = self.words(target, checkpoint)
        there = {"b", *names(self.folder)}  # a compile that is stopped early does not get to what killed ones left
        running = self.nursery.start(*words, environment=self.environment(cold=cold))
        time.sleep(moment * self.seconds[target, cold])
        os.kill(running.pid, sent)  # nobody has waited for it yet: the number is still its own
        ended = running.wait()
        assert ended.code in (0, -sent, 128 + sent), ended.said
        self.counts["finished" if ended.code == 0 else sent.name] += 1
        if ended.code == 128 + sent:
            assert f"stopped by {sent.name}" in ended.said
            assert "Traceback" not in ended.said
            assert there.issuperset(names(self.folder))
            assert names(temporary(self.nursery.folder)) == []
        self.no_orphans()
        return checkpoint

    def no_orphans(self) -> None:
        end = time.monotonic() + GRACE
        while found := [line for line in processes_on(self.folder) if "iree" in line]:
            assert time.monotonic() < end, found
            time.sleep(0.05)


def disturb(trial: Trial, plan: list[tuple[str, bool]], seed: int) -> None:
    """Kills one compile for each target (and whether its cache is cold) in the plan."""
    print(f"seed {seed}")  # pytest shows it when the test fails
    dice = random.Random(seed)
    says: dict[Path, list[int]] = {}
    for target, cold in sorted(set(plan), key=lambda kind: not kind[1]):
        for checkpoint, tokens in [trial.whole(target, cold=cold), trial.whole(target, cold=cold)]:
            assert says.setdefault(checkpoint, tokens) == tokens
    one, other = says.values()
    assert one != other
    before = tokens_of(trial.out)
    dice.shuffle(plan)
    for number, (target, cold) in enumerate(plan):
        checkpoint = trial.killed(target, dice.uniform(0, 1.05), SIGNALS[number % len(SIGNALS)], cold=cold)
        after = tokens_of(trial.out)
        assert after in (before, says[checkpoint])
        before = after
    trial.whole("torch", cold=False)
    assert names(temporary(trial.nursery.folder)) == []
    print(dict(trial.counts))
    assert trial.counts["finished"] < len(plan) / 2, "most compiles should be under way when they are killed"


@pytest.mark.slow
def test_six_kills(nursery, checkpoints, tmp_path):
    disturb(Trial(nursery, checkpoints, tmp_path / "o"), [("torch", False)] * 6, seed=6)


@pytest.mark.slow
def test_sixty_kills(nursery, checkpoints, tmp_path):
    plan = [("torch", False)] * 24 + [("torch", True)] * 20 + [("cpu", True)] * 16
    disturb(Trial(nursery, checkpoints, tmp_path / "o"), plan, seed=60)
