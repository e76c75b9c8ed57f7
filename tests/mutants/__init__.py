"""Mutants of users' programs: right programs, each with one mistake on one rank or on all, and what
becomes of them. None may be silent, unless the docs prove that no run can tell it; none may hang.

The programs (programs_*.py) are what users write; operators.py has the mistakes, and outcomes.py
says what each mutant is: told, right, another right program, impossible, silent or hung.
``pytest tests/mutants --sweep`` runs all of them.
"""
