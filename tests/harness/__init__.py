"""What the tests of this repository share, beside what users test with (mnpar.testing)."""
