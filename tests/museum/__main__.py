"""``python -m tests.museum``: write docs/museum.md."""

from tests.museum.page import main

main()
