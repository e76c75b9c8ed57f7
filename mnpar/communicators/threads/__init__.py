"""Communicators whose ranks are threads of one process."""
