"""Ensembles: members on ranks, and tournaments between them."""
