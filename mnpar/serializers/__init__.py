"""Objects in files: Chainer's npz and HDF5, and safetensors. No file ever runs code, and none is
ever seen half written.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.serializer import AbstractSerializer, Deserializer, Serializer
    from mnpar.serializers.atomic import replacing
    from mnpar.serializers.hdf5 import HDF5Deserializer, HDF5Serializer, load_hdf5, save_hdf5
    from mnpar.serializers.npz import (
        DictionarySerializer,
        NpzDeserializer,
        load_npz,
        save_npz,
        serialize,
    )
    from mnpar.serializers.npz_file import NpzFile
    from mnpar.serializers.safetensors import (
        load_safetensors,
        read_safetensors,
        save_safetensors,
        write_safetensors,
    )
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "AbstractSerializer",
    "Deserializer",
    "DictionarySerializer",
    "HDF5Deserializer",
    "HDF5Serializer",
    "NpzDeserializer",
    "NpzFile",
    "Serializer",
    "load_hdf5",
    "load_npz",
    "load_safetensors",
    "read_safetensors",
    "replacing",
    "save_hdf5",
    "save_npz",
    "save_safetensors",
    "serialize",
    "write_safetensors",
]
