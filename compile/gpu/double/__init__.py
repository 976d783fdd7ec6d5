"""A double of the CUDA driver: the functions of `cuda.bindings.driver`, on memory of this process and PTX run by numpy.

Nothing runs before something waits for it, so a copy that reads too early, memory freed too early and a stream that
nobody waits for show. A failed kernel ends the context, as on a device. docs/architecture.md says why it is Python.
"""
