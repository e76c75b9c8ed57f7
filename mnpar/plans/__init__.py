"""The geometry of distributed arrays: boxes, windows and plans, computed on integers; no array is
touched here.

All index arithmetic of mnpar is in this package. ``mnpar.functions.exchange`` carries a plan out.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.plans.box import (
        Box as Box,
        block as block,
        blocks as blocks,
        everywhere as everywhere,
    )
    from mnpar.plans.halo import (
        Window as Window,
        halo_plan as halo_plan,
        output_shape as output_shape,
        reads as reads,
        transposed_plan as transposed_plan,
        transposed_shape as transposed_shape,
    )
    from mnpar.plans.layout import Layout as Layout, Part as Part, padded as padded
    from mnpar.plans.plan import Plan as Plan
    from mnpar.plans.ring import (
        Ring as Ring,
        in_order as in_order,
        layouts as layouts,
        positions as positions,
        rows_of as rows_of,
        zigzag as zigzag,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
