"""A plan for parameters: an ordinary model, divided among the ranks of a mesh by rules.

Read in this order: rules.py (which links a rule means), divisions.py (what a rule does to a link),
parallelize.py (both, for a whole model), layers.py (stages of a pipeline), table.py and gathered.py
(the plan as a table, and the whole model again).
"""
