"""Stand-in until the serializers are here: numpy's zip files, Chainer's keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.serializer import Deserializer, Serializer


class DictionarySerializer(Serializer):
    """Into a dict."""

    def __init__(self, target: dict[str, Any] | None = None, path: str = "") -> None:
        self.target = {} if target is None else target
        self.path = path

    def __getitem__(self, key: str) -> DictionarySerializer:
        return DictionarySerializer(self.target, f"{self.path}{key.strip('/')}/")

    def __call__(self, key: str, value: Any) -> Any:
        if value is not None:
            self.target[self.path + key.lstrip("/")] = np.array(backend.to_host(value))
        return value


class NpzDeserializer(Deserializer):
    """Out of a dict, or what ``numpy.load`` gives."""

    def __init__(self, npz: Any, path: str = "", strict: bool = True) -> None:
        self.npz, self.path, self.strict = npz, path, strict

    def __getitem__(self, key: str) -> NpzDeserializer:
        return NpzDeserializer(self.npz, f"{self.path}{key.strip('/')}/", self.strict)

    def __call__(self, key: str, value: Any) -> Any:
        name = self.path + key.lstrip("/")
        if name not in self.npz:
            if value is None or not self.strict:
                return value
            raise KeyError(name)
        found = self.npz[name]
        if value is None:
            return found
        if backend.is_array(value):
            value[...] = found
            return value
        return type(value)(found[()])


def serialize(obj: Any) -> dict[str, Any]:
    """The dict of an object."""
    serializer = DictionarySerializer()
    serializer.save(obj)
    return serializer.target


def save_npz(file: Any, obj: Any, compression: bool = True) -> None:
    """Write."""
    if isinstance(file, str):
        with open(file, "wb") as stream:
            return save_npz(stream, obj, compression)
    (np.savez_compressed if compression else np.savez)(file, **(obj if isinstance(obj, dict) else serialize(obj)))
    return None


def load_npz(file: Any, obj: Any, path: str = "", strict: bool = True, ignore_names: Any = None) -> None:
    """Read."""
    with np.load(file, allow_pickle=False) as found:
        NpzDeserializer(dict(found), path, strict).load(obj)
