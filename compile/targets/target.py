"""What a program is lowered to."""

from __future__ import annotations

from bringup.diagnostics import did_you_mean, fail

# Name → what runs it. `cpu` names the best lowering for the processor that there is; today that is IREE's.
TARGETS = {"torch": "torch", "cpu": "iree-cpu", "iree-cpu": "iree-cpu"}


def resolve(name: str) -> str:
    """The lowering that a target name stands for. Raises BU006 for an unknown one."""
    if not isinstance(name, str) or name not in TARGETS:  # pyright: ignore[reportUnnecessaryIsInstance]  users' calls
        known = f"one of {', '.join(TARGETS)}"
        raise fail("BU006", f"there is no target `{name}`", help=did_you_mean(str(name), TARGETS) or known)
    return TARGETS[name]
