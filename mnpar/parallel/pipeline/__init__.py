"""Pipelines: a model in stages, and the schedules by which micro-batches pass them."""
