"""The checksum of an array that is written to a file: a flipped bit is found when it is read.

The array's bytes are summed in rows of 128 words of 64 bits, which takes no longer than to read
them, and the sums go through CRC-32. Any single flipped bit changes a sum, and so the CRC; of other
accidents one in four thousand million goes unseen. It is no protection against forgery.
"""

from __future__ import annotations

import zlib

import numpy as np

from mnpar.backend import Array

_WORDS = 128  # of a row


def checksum(array: Array) -> int:
    """Return 32 bits that depend on each bit of an array's content, rows first, least byte first.

    Args:
        array: of numpy, contiguous.

    Example:
        >>> import numpy as np
        >>> from mnpar.serializers.checksum import checksum
        >>> checksum(np.array([1.0, 2.0])) == checksum(np.array([1.0, 2.0 + 4e-16]))
        False
    """
    raw = array.reshape(-1).view(np.uint8)
    rows = len(raw) // (8 * _WORDS)
    body = raw[: rows * 8 * _WORDS].view("<u8").reshape(rows, _WORDS)
    # sums wrap around; a sum in another order of bytes would be another number
    sums = body.sum(axis=1, dtype=np.uint64).astype("<u8", copy=False)
    return zlib.crc32(raw[rows * 8 * _WORDS :].data, zlib.crc32(sums.data))
