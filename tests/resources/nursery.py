"""A process that has imported what a compile needs, and forks a child for each command: 60 compiles, one import.

It reads JSON requests, one on each line, and answers with JSON lines. {"words": [...], "errors": FILE, "environment":
{…}, "limit": [address space, file size] in bytes or null, "before": "package:function", called in the child before the
command} starts `bringup WORDS`, and the answer is its process id. The answer to {"wait": PID} is the exit code
(negative: a signal), seconds, and the peak memory of the process and of its children, in bytes. With a "folder" the
child runs there, imports modules from there, and treats every source file as the running code: only files that this
process has not imported may be edited. {"prepare": "package:function"} is called here, once for all later children.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from importlib import import_module

from bringup.cli.main import cli
from bringup.compile import pipeline
from bringup.compile.cache import text_digests
from bringup.compile.program import trace
from bringup.compile.targets import iree_compiler as iree  # noqa: F401
from bringup.compile.targets import torch_executor as run_torch  # noqa: F401
from bringup.system import signals


def start(request: dict) -> int:
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)  # what it starts is found by this group after its end
    os.dup2(os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(2, 1)
    os.environ.update(request.get("environment", {}))
    space, file = request.get("limit") or (None, None)
    for kind, limit in ((resource.RLIMIT_AS, space), (resource.RLIMIT_FSIZE, file)):
        if limit:
            resource.setrlimit(kind, (limit, limit))
    if folder := request.get("folder"):
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True  # an edit within a second, to a text as long, would not be noticed
        text_digests.STARTED = float("inf")
    if before := request.get("before"):
        call(before, *request.get("arguments", []))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and those of nohup with this one
    try:
        signals.catch()
        cli.main(request["words"])
    except SystemExit as end:
        sys.stderr.flush()
        os._exit(int(end.code or 0))


def call(place: str, *arguments: object) -> None:
    module, _, name = place.partition(":")
    getattr(import_module(module), name)(*arguments)


def wait(child: int) -> dict:
    _, status, used = os.wait4(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "peak": used.ru_maxrss * 1024}


def warm() -> None:
    """Traces once here, so that no child imports what tracing imports."""
    from bringup.graphs.gpt2 import GPT2, GPT2Config
    from tests.resources.compiles import TINY

    graph = GPT2(GPT2Config.from_hf(TINY))
    trace.export_graph(graph, pipeline.layout_of(graph, 64, [64]))


if __name__ == "__main__":
    warm()
    began: dict[int, float] = {}
    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            answer = wait(command["wait"])
            answer["seconds"] = time.monotonic() - began.pop(command["wait"])
        elif "prepare" in command:
            answer = call(command["prepare"])
        else:
            answer = start(command)
            began[answer] = time.monotonic()
        print(json.dumps(answer), flush=True)
