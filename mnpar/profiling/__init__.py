"""Profiles of a job, and their timelines."""
