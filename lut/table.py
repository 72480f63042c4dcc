"""What `gateway.core` may know of the lookup table.

Rule of this room: nothing is defined here. It is the one door between `gateway.core` and this package: the core
imports these names from here and imports no other module of `lut`.
"""

from lut.axes import Axes
from lut.cell import ARMS, FIELDS, HEALTHY_SUCCESS, UNKNOWN_CI, Arm, Cell, Origin, Route
from lut.errors import TableError
from lut.lookup import Table
from lut.score import Score, score
from lut.tableset import TableSet

__all__ = [
    "ARMS",
    "FIELDS",
    "HEALTHY_SUCCESS",
    "UNKNOWN_CI",
    "Arm",
    "Axes",
    "Cell",
    "Origin",
    "Route",
    "Score",
    "Table",
    "TableError",
    "TableSet",
    "score",
]
