"""Whether kernels are right: fresh inputs, the reference, the rules that judge."""
