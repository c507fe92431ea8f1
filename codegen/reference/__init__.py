"""What every kernel computes, in NumPy: the specification as code."""
