"""Initializers: functions that fill the arrays of new parameters. They work on arrays and know no
Variables.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.initializers.by_path import initialize_by_path as initialize_by_path
    from mnpar.initializers.constant import (
        Constant as Constant,
        Identity as Identity,
        NaN as NaN,
        One as One,
        Zero as Zero,
    )
    from mnpar.initializers.generate import (
        _get_initializer as _get_initializer,
        generate_array as generate_array,
    )
    from mnpar.initializers.initializer import Initializer as Initializer, get_fans as get_fans
    from mnpar.initializers.interpolation import (
        DownsamplingConvFilter as DownsamplingConvFilter,
        UpsamplingDeconvFilter as UpsamplingDeconvFilter,
    )
    from mnpar.initializers.normal import (
        GlorotNormal as GlorotNormal,
        HeNormal as HeNormal,
        LeCunNormal as LeCunNormal,
        Normal as Normal,
    )
    from mnpar.initializers.orthogonal import Orthogonal as Orthogonal
    from mnpar.initializers.uniform import (
        GlorotUniform as GlorotUniform,
        HeUniform as HeUniform,
        LeCunUniform as LeCunUniform,
        Uniform as Uniform,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
