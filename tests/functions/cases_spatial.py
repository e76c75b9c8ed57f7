"""Rows of convolution, pooling and resizing."""

from __future__ import annotations

from case import Case

CASES: list[Case] = []
