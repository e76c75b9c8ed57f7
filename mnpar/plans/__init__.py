"""The geometry of distributed arrays: boxes, windows and plans, computed on integers; no array is
touched here.

All index arithmetic of mnpar is in this package. ``mnpar.functions.exchange`` carries a plan out.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.plans.box import Box, block, blocks, everywhere
    from mnpar.plans.halo import (
        Window,
        halo_plan,
        output_shape,
        reads,
        transposed_plan,
        transposed_shape,
    )
    from mnpar.plans.layout import Layout, Part, padded
    from mnpar.plans.plan import Plan
    from mnpar.plans.ring import Ring, in_order, layouts, positions, rows_of, zigzag
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "Box",
    "Layout",
    "Part",
    "Plan",
    "Ring",
    "Window",
    "block",
    "blocks",
    "everywhere",
    "halo_plan",
    "in_order",
    "layouts",
    "output_shape",
    "padded",
    "positions",
    "reads",
    "rows_of",
    "transposed_plan",
    "transposed_shape",
    "zigzag",
]
