"""Checks of communications: what ranks hold alike is alike, and what counts once counts once.

Functions know no check. They call the hook of functions/communication/base.py, and this package is
what stands there: in debug mode always, and on a mesh in those updates that are checked.
"""
