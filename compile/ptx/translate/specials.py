"""Special registers as int32 expressions of the generated code (PTX ISA, "Special Registers")."""

from __future__ import annotations

SPECIALS: dict[str, str] = {
    "tid.x": "context.launch.thread",
    "tid.y": "i32(0)",
    "tid.z": "i32(0)",
    "ntid.x": "i32(context.thread_count)",
    "ntid.y": "i32(1)",
    "ntid.z": "i32(1)",
    **{f"ctaid.{axis}": f"context.block_index[{axis!r}]" for axis in "xyz"},
    **{f"nctaid.{axis}": f"i32(context.launch.grid[{place}])" for place, axis in enumerate("xyz")},
    "laneid": "context.launch.lane",
    "warpid": "context.launch.warp",
    "smid": "i32(0)",
    "lanemask_eq": "(u32(1) << context.launch.lane.astype(u32)).view(i32)",
    "lanemask_lt": "((u32(1) << context.launch.lane.astype(u32)) - u32(1)).view(i32)",
    "lanemask_le": "((u32(2) << context.launch.lane.astype(u32)) - u32(1)).view(i32)",
    "lanemask_ge": "~((u32(1) << context.launch.lane.astype(u32)) - u32(1)).view(i32)",
    "lanemask_gt": "~((u32(2) << context.launch.lane.astype(u32)) - u32(1)).view(i32)",
    "clock": "i32(context.launch.steps)",
    "clock64": "i32(context.launch.steps)",
    "globaltimer": "i32(context.launch.steps)",
    "globaltimer_lo": "i32(context.launch.steps)",
    "cluster_ctarank": "i32(0)",
    **{f"cluster_ctaid.{axis}": "i32(0)" for axis in "xyz"},
    **{f"cluster_nctaid.{axis}": "i32(1)" for axis in "xyz"},
}
"""A clock counts basic blocks. A cluster has one block."""
