"""The kernels of the CPU, one file each: a function that emits the IR of one kernel for given settings."""
