"""Functions of arrays that are divided among ranks: blocks of images, parts of sequences, of
vocabularies, of experts.
"""
