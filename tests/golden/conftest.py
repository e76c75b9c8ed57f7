"""The recorders need Chainer or PyTorch: pytest does not import them."""

collect_ignore_glob = ["record_*.py"]
