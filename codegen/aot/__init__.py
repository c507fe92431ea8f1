"""Cubins to ship: wheels, and C headers."""
