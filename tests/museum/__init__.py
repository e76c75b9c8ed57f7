"""A museum of silent gradients: mistakes that change numbers without a word, as small programs.

A room is a program (rooms_*.py), the place where the mistake was reported, what the system there
does, and what mnpar does: the *right* number, *told* by an error, or *checked*, that is, found by
mnpar.check because no single run can know it. ``python -m tests.museum`` writes docs/museum.md.
"""
