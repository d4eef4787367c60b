"""The pieces of a sentencepiece model, read from its bytes alone."""

import struct
from collections.abc import Iterator

NORMAL, UNKNOWN, CONTROL = 1, 2, 3
_NUMBER, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def read_pieces(model: bytes) -> list[tuple[str, int]]:
    """Returns each piece with its kind, in the order of the ids.

    The bytes are a message of protocol buffers, whose first field is repeated
    for each piece: a message of the piece, its score and its kind.

    Args:
        model: bytes, as sentencepiece writes them.

    Raises:
        ValueError: if they are something else.
    """
    pieces = []
    for number, content in _fields(model):
        if number == 1:
            if not isinstance(content, bytes):
                raise ValueError("A piece must be a message.")
            fields = dict(_fields(content))
            piece, kind = fields.get(1, b""), fields.get(3, NORMAL)
            if not isinstance(piece, bytes) or not isinstance(kind, int):
                raise ValueError("A piece must be a string and a kind.")
            pieces.append((piece.decode("utf-8"), kind))
    return pieces


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yields the number and the content of each field."""
    at = 0
    while at < len(message):
        key, at = _read_number(message, at)
        kind, size = key & 7, 0
        if kind == _NUMBER:
            value, at = _read_number(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_number(message, at)
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            size = 4 if kind == _FOUR_BYTES else 8
        else:
            raise ValueError("There is no such kind of field.")
        content = message[at : at + size]
        at += size
        if len(content) < size:
            raise ValueError("The last field is not complete.")
        if kind == _BYTES:
            yield key >> 3, content
        else:
            yield (
                key >> 3,
                struct.unpack("<f" if size == 4 else "<d", content)[0],
            )


def _read_number(message: bytes, at: int) -> tuple[int, int]:
    """Returns a number of seven bits a byte, and where the next field is."""
    number = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise ValueError("The last number is not complete.")
