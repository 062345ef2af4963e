"""Which parameters, seen as which matrices: `matrices(model)` makes a `Plan`.

It knows modules, names and shapes, and never looks at a gradient. A plan lists every parameter, taken as matrices or left
alone for a reason. `patterns` matches the selectors that a user passes, `head` finds the output layers.
"""

from egalitarian.select.plan import Entry, Plan, PlannedGroups, PlannedParameters, Target, annotate, whole
from egalitarian.select.selection import matrices, survey

__all__ = ["Entry", "Plan", "PlannedGroups", "PlannedParameters", "Target", "annotate", "matrices", "survey", "whole"]
