"""The engine of automatic differentiation; read it in this order: graph, engine, accumulate, tape,
arraylike.
"""
