"""Testing programs that run on several ranks: a pytest plugin, and checks of gradients over
ranks.
"""

from mnpar.testing.adjoint import check_adjoint
from mnpar.testing.helpers import assert_allclose, get_device, product, product_dict

__all__ = ["assert_allclose", "check_adjoint", "get_device", "product", "product_dict"]
