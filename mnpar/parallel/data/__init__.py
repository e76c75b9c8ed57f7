"""Data parallelism: copies of one model that step as one with all samples."""
