"""Text as a long row of word numbers, for language models: the Penn Tree Bank's form, from files
that the user has.

(Marcus, Santorini and Marcinkiewicz 1993; in the preparation of Mikolov et al. 2010, which must not
be passed on freely: mnpar downloads none of it.) Any text will do: words are what white space
separates, and each line ends with the word ``<eos>``.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mnpar.backend import Array
from mnpar.errors import DatasetError

EOS, UNKNOWN = "<eos>", "<unk>"
PARTS = ("train", "valid", "test")
FOLDERS = ("", "ptb", "data", "simple-examples/data")


def get_ptb_words(*, data: str | Path | None = None) -> tuple[Array, Array, Array]:
    """Return the Penn Tree Bank's training, validation and test text as word numbers.

    Args:
        data: the folder with ``ptb.train.txt``, ``ptb.valid.txt`` and ``ptb.test.txt``, or one that
            has them in ``ptb/``, ``data/`` or ``simple-examples/data/``. None: the folder in the
            variable MNPAR_DATA.

    Returns:
        Three int32 vectors. :func:`get_ptb_words_vocabulary` says what the numbers mean. Local:
        each rank reads the files.

    Raises:
        FileNotFoundError: a file is not there.
        DatasetError: a file is no text, or has a word that the training text does not have.

    Example:
        >>> from mnpar.datasets import get_ptb_words
        >>> get_ptb_words(data="/no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    train, valid, test = get_words(*[_find(f"ptb.{part}.txt", data) for part in PARTS])[0]
    return train, valid, test


def get_ptb_words_vocabulary(*, data: str | Path | None = None) -> dict[str, int]:
    """Return the numbers of the Penn Tree Bank's words, in the order in which the training text has
    them.

    Args:
        data: as in :func:`get_ptb_words`.

    Raises:
        FileNotFoundError, DatasetError: as :func:`get_ptb_words`.

    Example:
        >>> from mnpar.datasets import get_ptb_words_vocabulary
        >>> get_ptb_words_vocabulary(data="/no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    return get_words(_find("ptb.train.txt", data))[1]


def get_words(*paths: str | Path) -> tuple[tuple[Array, ...], dict[str, int]]:
    """Texts as word numbers, with the vocabulary of the first.

    Args:
        *paths: text files in UTF-8; the first is the one to train with. Words of the others that it
            does not have become ``<unk>``, if it has that.

    Returns:
        An int32 vector for each file, and a dict from word to number. Local: each rank reads the
        files.

    Raises:
        FileNotFoundError: no such file.
        DatasetError: a file is empty or no text, or has a word that the first does not have.

    Example:
        >>> import os, tempfile
        >>> from mnpar.datasets import get_words
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "text")
        ...     with open(path, "w") as file:
        ...         _ = file.write("to be or\\nnot to be\\n")
        ...     (numbers,), vocabulary = get_words(path)
        >>> numbers.tolist(), vocabulary
        ([0, 1, 2, 3, 4, 0, 1, 3], {'to': 0, 'be': 1, 'or': 2, '<eos>': 3, 'not': 4})
    """
    texts = [_read(path) for path in paths]
    vocabulary: dict[str, int] = {}
    for word in texts[0]:
        vocabulary.setdefault(word, len(vocabulary))
    return tuple(
        [_number(path, text, vocabulary) for path, text in zip(paths, texts, strict=True)]
    ), vocabulary


def _read(path: str | Path) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            words = [word for line in file for word in (*line.split(), EOS)]
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path}: at byte {error.start}: expected text in UTF-8, found {error.reason}"
        ) from None
    if not words:
        raise DatasetError(f"{path}: expected text, found an empty file")
    return words


def _number(path: str | Path, words: list[str], vocabulary: dict[str, int]) -> Array:
    unknown = vocabulary.get(UNKNOWN, -1)
    numbers = np.array([vocabulary.get(word, unknown) for word in words], np.int32)
    wrong = np.flatnonzero(numbers < 0)
    if wrong.size:
        line = words[: wrong[0]].count(EOS) + 1
        raise DatasetError(
            f"{path}: on line {line}: the training text has no word {words[wrong[0]]!r} "
            f"({wrong.size} of {len(words)} words "
            f"are not in it) and no {UNKNOWN}: write {UNKNOWN} for rare words"
        )
    return numbers


def _find(name: str, data: str | Path | None) -> Path:
    folder = data or os.environ.get("MNPAR_DATA")
    remedy = (
        "give the folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt by data= or by the "
        "variable MNPAR_DATA"
    )
    if not folder:
        raise FileNotFoundError(f"{name}: {remedy}")
    places = [Path(folder, inside, name) for inside in FOLDERS]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"{name} is in none of {', '.join(str(place.parent) for place in places)}; {remedy}"
    )
