"""The geometry of distributed arrays: boxes, windows and plans, on integers; no arrays are moved here.

All index arithmetic of mnpar is in this package. ``mnpar.functions.exchange`` carries a plan out.
"""

from mnpar.plans.box import Box, block, blocks, everywhere
from mnpar.plans.halo import Window, halo_plan, output_shape, reads, transposed_plan, transposed_shape
from mnpar.plans.layout import Layout, Part, padded
from mnpar.plans.plan import Plan

__all__ = [
    "Box",
    "Layout",
    "Part",
    "Plan",
    "Window",
    "block",
    "blocks",
    "everywhere",
    "halo_plan",
    "output_shape",
    "padded",
    "reads",
    "transposed_plan",
    "transposed_shape",
]
