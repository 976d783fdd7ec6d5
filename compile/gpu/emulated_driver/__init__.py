"""An emulated CUDA driver: the functions of `cuda.bindings.driver`, on host memory, with PTX executed by numpy.

Work is queued and runs only when the host waits for it. This exposes copies that read too early, memory that is freed
too early, and streams that are never waited for. A failed kernel ends the context, as on a device.
docs/schedule-and-kernels.md states why the emulator is written in Python.
"""
