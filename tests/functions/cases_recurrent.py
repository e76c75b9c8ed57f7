"""Rows of recurrent functions and attention."""

from __future__ import annotations

from case import Case

CASES: list[Case] = []
