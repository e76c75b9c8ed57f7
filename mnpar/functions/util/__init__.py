"""Functions that change how others are differentiated."""
