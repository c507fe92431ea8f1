"""From a plan to a cubin: rendered, then compiled by NVRTC."""
