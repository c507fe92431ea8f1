"""The rendered kernels on a CPU, every access checked."""
