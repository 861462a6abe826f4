"""What a GGUF file says of its model, read from its head without loading anything."""

import struct
from pathlib import Path
from typing import BinaryIO, Final

_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_FORMATS: Final = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_TEXT: Final = 64 * 1024 * 1024


def context_length(path: Path) -> int | None:
    """Tokens that the model was trained for; None if the file does not say, or is no GGUF file that we can read."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF" or _number(file, "<I") not in (2, 3):
                return None
            _number(file, "<Q")  # tensors
            for _ in range(_number(file, "<Q")):
                key, kind = _text(file), _number(file, "<I")
                if key.endswith(".context_length") and kind in _FORMATS:
                    return _number(file, _FORMATS[kind])
                _skip(file, kind)
    except (OSError, ValueError, struct.error):
        return None
    return None


def _number(file: BinaryIO, form: str) -> int:
    value: int = struct.unpack(form, file.read(struct.calcsize(form)))[0]
    return value


def _text(file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > _MAX_TEXT:
        raise ValueError("a text that long is none")
    return file.read(length).decode("utf-8", errors="replace")


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _text(file)
    elif kind == _ARRAY:
        inner, count = _number(file, "<I"), _number(file, "<Q")
        if inner in _SIZES:
            file.seek(_SIZES[inner] * count, 1)
            return
        for _ in range(count):
            _skip(file, inner)
    elif kind in _SIZES:
        file.seek(_SIZES[kind], 1)
    else:
        raise ValueError("an unknown kind of value")
