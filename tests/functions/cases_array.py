"""Rows of array functions, further activations and losses."""

from __future__ import annotations

from case import Case

CASES: list[Case] = []
