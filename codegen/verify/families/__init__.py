"""How each kernel family is checked: a module a family, of its name.

It has ``sample(config, rng, rows)``, inputs for a few launches, and ``expect(plan, sample)``,
what outputs must hold; where several ranks run, ``ranks(made, rng, seed)``, a trial of all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def of(kernel: str) -> Any:
    """The module of the family ``kernel``."""
    return import_module(f".{kernel}", __package__)
