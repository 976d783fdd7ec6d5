"""The CUDA driver: what loads cubins and starts launches, and a double of it that runs PTX on the CPU."""
