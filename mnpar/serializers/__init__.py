"""Objects in files: Chainer's npz and HDF5, and safetensors. No file ever runs code, and none is
ever seen half written.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.serializer import (
        AbstractSerializer as AbstractSerializer,
        Deserializer as Deserializer,
        Serializer as Serializer,
    )
    from mnpar.serializers.atomic import replacing as replacing
    from mnpar.serializers.hdf5 import (
        HDF5Deserializer as HDF5Deserializer,
        HDF5Serializer as HDF5Serializer,
        load_hdf5 as load_hdf5,
        save_hdf5 as save_hdf5,
    )
    from mnpar.serializers.npz import (
        DictionarySerializer as DictionarySerializer,
        NpzDeserializer as NpzDeserializer,
        NpzFile as NpzFile,
        load_npz as load_npz,
        save_npz as save_npz,
        serialize as serialize,
    )
    from mnpar.serializers.safetensors import (
        load_safetensors as load_safetensors,
        read_safetensors as read_safetensors,
        save_safetensors as save_safetensors,
        write_safetensors as write_safetensors,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
