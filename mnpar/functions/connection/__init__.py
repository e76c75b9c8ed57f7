"""Functions with weights: linear, convolutions, embeddings, attention."""
