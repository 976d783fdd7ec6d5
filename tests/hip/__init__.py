"""The HIP runtime, behind a C library that is compiled against HIP's header."""
