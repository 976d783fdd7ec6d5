"""Streams, events and graphs of the emulated driver."""

from __future__ import annotations

from typing import Any

from bringup.compile.gpu.emulated_driver.queues import Capture, Happening, Queue
from bringup.compile.gpu.emulated_driver.status import (
    CAPTURE,
    CAPTURE_INVALID,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    Refused,
    Statuses,
    call,
)

UNTIMED = 2  # CU_EVENT_DISABLE_TIMING


class Streams(Statuses):
    """cuStream…, cuEvent… and cuGraph…. Handles are integers, as those of the driver are."""

    def __init__(self) -> None:
        super().__init__()
        self._handles: dict[int, Any] = {}
        self._last = 0x1000
        self._default = Queue()
        self._destroyed: list[Queue] = []  # streams whose work goes on

    def new(self, thing: Any) -> int:
        """A new handle for an object."""
        self._last += 0x10
        self._handles[self._last] = thing
        return self._last

    def found(self, handle: Any, kind: type) -> Any:
        """The object of a handle. Raises Refused if the handle is not live, or its object is of another class."""
        thing = self._handles.get(int(handle))
        if not isinstance(thing, kind):
            raise Refused(INVALID_HANDLE, f"{int(handle):#x} is not a live {kind.__name__.lower()}")
        return thing

    def queue(self, stream: Any) -> Queue:
        """The queue of a stream's handle; handle 0 is the default stream. Raises Refused as `found`."""
        return self.found(stream, Queue) if int(stream) else self._default

    def drain_all(self) -> None:
        """Runs all work of all streams."""
        for queue in self._queues():
            queue.drain()

    def not_capturing(self) -> None:
        """Raises Refused, and ends captures as invalid, where they do not permit an unsafe call in this thread."""
        for queue in self._queues():
            if queue.capture is not None and not queue.capture.permits():
                queue.capture.is_valid = False
                raise Refused(CAPTURE, "a stream is being captured")

    def _queues(self) -> list[Queue]:
        live = (thing for thing in self._handles.values() if isinstance(thing, Queue))
        return [self._default, *self._destroyed, *live]

    @call
    def cuStreamCreate(self, flags: int) -> Any:
        return self.CUstream(self.new(Queue()))

    @call
    def cuStreamDestroy(self, stream: Any) -> None:
        self._destroyed.append(self.queue(stream))
        del self._handles[int(stream)]

    @call
    def cuStreamSynchronize(self, stream: Any) -> None:
        queue = self.queue(stream)
        if queue.capture is not None:
            queue.capture.is_valid = False
            raise Refused(CAPTURE, "the stream is being captured")
        queue.drain()

    @call
    def cuEventCreate(self, flags: int) -> Any:
        return self.CUevent(self.new(Happening(timed=not flags & UNTIMED)))

    @call
    def cuEventDestroy(self, event: Any) -> None:
        self.found(event, Happening)
        del self._handles[int(event)]

    @call
    def cuEventRecord(self, event: Any, stream: Any) -> None:
        queue = self.queue(stream)
        if queue.capture is not None:
            raise Refused(CAPTURE, "the emulated driver does not capture events")
        queue.record(self.found(event, Happening))

    @call
    def cuEventSynchronize(self, event: Any) -> None:
        self.not_capturing()
        happening: Happening = self.found(event, Happening)
        if happening.queue is not None:
            happening.queue.drain(happening)

    @call
    def cuEventElapsedTime(self, start: Any, end: Any) -> float:
        begin, stop = (self.found(event, Happening) for event in (start, end))
        if not (begin.timed and stop.timed):
            raise Refused(INVALID_HANDLE, "an event does not record its time")
        if begin.queue is None or stop.queue is None:
            raise Refused(INVALID_HANDLE, "an event was never recorded")
        if begin.over is None or stop.over is None:
            raise Refused(NOT_READY, "an event has not happened yet")
        return (stop.over - begin.over) * 1e3

    @call
    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> None:
        queue = self.queue(stream)
        if queue is self._default or queue.capture is not None:
            raise Refused(CAPTURE, "this stream cannot be captured now")
        queue.capture = Capture(int(mode))

    @call
    def cuStreamEndCapture(self, stream: Any) -> Any:
        queue = self.queue(stream)
        if queue.capture is None:
            raise Refused(INVALID_VALUE, "the stream is not being captured")
        capture, queue.capture = queue.capture, None
        if not capture.is_valid:
            raise Refused(CAPTURE_INVALID, "a call was not permitted during the capture")
        return self.CUgraph(self.new(capture.work))

    @call
    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        return self.CUgraphExec(self.new(list(self.found(graph, list))))

    @call
    def cuGraphDestroy(self, graph: Any) -> None:
        self.found(graph, list)
        del self._handles[int(graph)]

    @call
    def cuGraphExecDestroy(self, graph: Any) -> None:
        self.found(graph, list)
        del self._handles[int(graph)]

    @call
    def cuGraphLaunch(self, graph: Any, stream: Any) -> None:
        queue, work = self.queue(stream), self.found(graph, list)
        for each in work:
            queue.put(each)
