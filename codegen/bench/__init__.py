"""How fast kernels are, beside their floors."""
