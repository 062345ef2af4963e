"""Chooses the parameters that EGD equalises, and the matrices in them: `matrices(model)` makes a `Plan`.

This room knows modules, names and shapes, and never looks at a gradient. A plan lists every parameter: either taken, as one
or more matrices, or left alone for a reason. `patterns` matches the selectors of a user, `head` finds output layers.
"""

from egalitarian.select.plan import Entry, Plan, PlannedGroups, PlannedParameters, Target, annotate, whole
from egalitarian.select.selection import matrices, survey

__all__ = ["Entry", "Plan", "PlannedGroups", "PlannedParameters", "Target", "annotate", "matrices", "survey", "whole"]
