"""`bringup serve`: requests, streaming, limits, shutdown."""
