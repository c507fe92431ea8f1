"""How a configuration runs on a target: grid, shared memory, parameters, work; arithmetic only."""

from .model import Plan, Region, Schedule, Work, plan
from .params import ANY, Array, Axis, Field, ParamTable, Scalar, itemsize

__all__ = [
    "ANY",
    "Array",
    "Axis",
    "Field",
    "ParamTable",
    "Plan",
    "Region",
    "Scalar",
    "Schedule",
    "Work",
    "itemsize",
    "plan",
]
