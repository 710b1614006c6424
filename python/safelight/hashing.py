"""`MultiModalHasher`: the identity of items, whether refs or media that is decoded already.

Owns the framing of values into one unambiguous stream of bytes, a published format that never
changes. A ref counts by its key alone: hashing must never decode one. Must never hash what differs
between processes: addresses, ``hash()``, the order of a set.

The stream, where ``frame(b)`` is the length of ``b`` as 8 bytes little-endian, then ``b``::

    kwargs     for each, sorted by name: frame(name) value
    value      00                                    None
               01 count value…                       list, tuple
               02 count (frame(str(key)) value)…     mapping, in its own order
               03 item                               anything else
               04                                    an empty buffer, which is not an empty text

Counts are 8 bytes little-endian as well. `MultiModalHasher.serialize_item` says what an item is.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from blake3 import blake3

from safelight.errors import RequestError, SpecError
from safelight.foreign import is_image, is_plain_tensor, is_tensor, loaded_torch
from safelight.orientation import stated_orientation
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["MultiModalHasher"]

_logger = logging.getLogger(__name__)

_Chunk = bytes | memoryview

# Deep enough for any options; far from the interpreter's recursion limit.
_MAX_DEPTH = 64
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class _Hash(Protocol):
    def update(self, data: _Chunk, /) -> object: ...

    def hexdigest(self) -> str: ...


_ALGORITHMS: dict[str, Callable[[], _Hash]] = {
    "blake3": blake3,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}


class MultiModalHasher:
    """Hashes what identifies an item: refs, media, options and names."""

    @classmethod
    def hash_kwargs(cls, algorithm: str, /, *, allow_pickle: bool = False, **kwargs: object) -> str:
        """Return the hash of named values as hexadecimal digits.

        The order of `kwargs` does not count; that of a mapping among the values does.

        Args:
            algorithm: ``"blake3"``, ``"sha256"`` or ``"sha512"``.
            allow_pickle: Whether a value of an unknown type is pickled, with a warning. Pickles
                differ between processes, so such a hash may never be met again.
            **kwargs: What identifies the item.

        Raises:
            RequestError: The algorithm is unknown.
            SpecError: Values nest more than 64 levels deep.
            TypeError: A value is of a type that has no stable bytes; names the type.
        """
        factory = _ALGORITHMS.get(algorithm)
        if factory is None:
            raise RequestError(f"hash algorithm must be one of {', '.join(_ALGORITHMS)}")
        hasher = factory()
        for name, value in sorted(kwargs.items()):
            for chunk in cls.iter_item_to_bytes(name, value, allow_pickle=allow_pickle):
                hasher.update(chunk)
        return hasher.hexdigest()

    @classmethod
    def iter_item_to_bytes(
        cls, key: str, obj: object, *, allow_pickle: bool = False
    ) -> Iterator[_Chunk]:
        """Yield the stream of one named value.

        Raises:
            SpecError: `obj` nests more than 64 levels deep.
            TypeError: As `hash_kwargs`.
        """
        yield from _frame(_utf8(key))
        yield from cls._iter_value(obj, allow_pickle, _MAX_DEPTH)

    @classmethod
    def serialize_item(cls, obj: object, *, allow_pickle: bool = False) -> Iterator[_Chunk]:
        """Yield the bytes of an item that is neither None nor a container, framed.

        - `MediaRef`: its key; nothing is decoded.
        - bytes and other buffers: as they are; text: UTF-8.
        - bool: 1 byte; int: 8 bytes, or as many as it takes; float: 8 bytes; little-endian.
        - Pillow image: ``"image"`` and its mode and pixels, palette, transparency and orientation
          where it has them; or the 16 bytes of an ImageID that is a `uuid.UUID`, which no file can
          hold.
        - torch tensor: ``"tensor"`` and its array. Types that numpy lacks go as bytes, under their
          own type and shape.
        - numpy array or scalar: ``"ndarray"`` and its type, shape and elements in C order.

        Raises:
            TypeError: As `hash_kwargs`; also for tensors that are not plain and dense, and for
                arrays of objects or with a mask, whose bytes do not tell what they hold.
        """
        # First, so that no other rule is ever asked about a ref.
        if isinstance(obj, MediaRef):
            return _frame(obj.key)
        if isinstance(obj, (bytes, bytearray, memoryview)):
            return _frame(_as_bytes_view(obj))
        if isinstance(obj, str):
            return _frame(_utf8(obj))
        if isinstance(obj, (int, float)):
            return _frame(_number_bytes(obj))
        if is_image(obj):
            return cls._iter_image(obj)
        if is_tensor(obj):
            return cls._iter_tensor(obj)
        if isinstance(obj, (np.ndarray, np.generic)):
            return cls._iter_array(obj)
        if not allow_pickle:
            raise TypeError(f"cannot hash an item of type {_type_name(obj)}")
        _logger.warning(
            "hashing a pickle of %s: such a hash may differ between processes", _type_name(obj)
        )
        return _frame(pickle.dumps(obj))

    @classmethod
    def _iter_value(cls, obj: object, allow_pickle: bool, depth: int) -> Iterator[_Chunk]:
        if obj is None:
            yield b"\x00"
        elif isinstance(obj, (list, tuple, Mapping)):
            if depth == 0:
                raise SpecError(f"a value to hash nests more than {_MAX_DEPTH} levels deep")
            yield (b"\x02" if isinstance(obj, Mapping) else b"\x01") + _length(len(obj))
            if isinstance(obj, Mapping):
                for key, value in obj.items():
                    yield from _frame(_utf8(str(key)))
                    yield from cls._iter_value(value, allow_pickle, depth - 1)
            else:
                for value in obj:
                    yield from cls._iter_value(value, allow_pickle, depth - 1)
        elif isinstance(obj, (bytes, bytearray, memoryview)) and not memoryview(obj).nbytes:
            yield b"\x04"
        else:
            yield b"\x03"
            yield from cls.serialize_item(obj, allow_pickle=allow_pickle)

    @classmethod
    def _iter_image(cls, image: Image.Image) -> Iterator[_Chunk]:
        image_id = _memory_image_id(image)
        if image_id is not None:
            return _frame(image_id.bytes)
        # Loading moves a palette into its final form, so it comes before looking at one.
        image.load()
        fields: dict[str, object] = {"mode": image.mode, "data": np.asarray(image)}
        palette = image.palette
        if palette is not None:
            fields["palette"] = bytes(palette.palette)
            if palette.rawmode is not None:
                fields["palette_rawmode"] = palette.rawmode
            if palette.mode != "RGB":
                fields["palette_mode"] = palette.mode
        if "transparency" in image.info:
            fields["transparency"] = image.info["transparency"]
        orientation = stated_orientation(image)
        if orientation != 1:
            fields["orientation"] = orientation
        return cls.iter_item_to_bytes("image", fields)

    @classmethod
    def _iter_tensor(cls, tensor: Any) -> Iterator[_Chunk]:
        if not is_plain_tensor(tensor):
            raise TypeError("cannot hash a tensor that is sparse, nested, quantized or on meta")
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        try:
            value = tensor.numpy()
        except TypeError:
            # bfloat16 and the 8-bit floats.
            raw = tensor.contiguous().reshape(-1).view(loaded_torch().uint8).numpy()
            value = {
                "original_dtype": str(tensor.dtype),
                "original_shape": tuple(tensor.shape),
                "data": raw,
            }
        return cls.iter_item_to_bytes("tensor", value)

    @classmethod
    def _iter_array(cls, array: np.ndarray[Any, Any] | np.generic) -> Iterator[_Chunk]:
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("cannot hash an array with a mask")
        array = np.asarray(array)
        dtype = array.dtype
        if dtype.hasobject:
            raise TypeError("cannot hash an array of objects")
        data: _Chunk
        if array.flags.c_contiguous and array.nbytes and array.ndim:
            data = array.reshape(-1).view(np.uint8).data
        else:
            data = array.tobytes()
        # `str` of a type with fields is its size alone.
        name = dtype.str if dtype.fields is None else repr(dtype.descr)
        fields = {"dtype": name, "shape": array.shape, "data": data}
        return cls.iter_item_to_bytes("ndarray", fields)


def _length(count: int) -> bytes:
    return count.to_bytes(8, "little")


def _frame(data: _Chunk) -> Iterator[_Chunk]:
    yield _length(len(data))
    yield data


def _utf8(text: str) -> bytes:
    # Lone surrogates, which JSON can bring, have no UTF-8 of their own.
    return text.encode("utf-8", "surrogatepass")


def _as_bytes_view(data: bytes | bytearray | memoryview) -> _Chunk:
    if isinstance(data, bytes):
        return data
    view = memoryview(data)
    try:
        return view.cast("B")
    except TypeError:
        # Not contiguous, empty, or of a format that memoryview does not know.
        return view.tobytes()


def _number_bytes(number: int | float) -> bytes:
    """Return the bytes that numpy has for a number, little-endian on every machine."""
    if isinstance(number, bool):
        return b"\x01" if number else b"\x00"
    if isinstance(number, float):
        return np.array(number, "<f8").tobytes()
    if _INT64_MIN <= number <= _INT64_MAX:
        return int(number).to_bytes(8, "little", signed=True)
    # More than 8 bytes, so that no larger number looks like an int64.
    return int(number).to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def _type_name(obj: object) -> str:
    cls = type(obj)
    return f"{cls.__module__}.{cls.__qualname__}"


def _memory_image_id(image: Image.Image) -> uuid.UUID | None:
    """Return the ImageID that a caller set as a `uuid.UUID`; a file can only bring text."""
    try:
        image_id = image.getexif().get(0x800D)
    except Exception:  # noqa: BLE001 - damaged metadata is no reason not to have an identity
        return None
    return image_id if isinstance(image_id, uuid.UUID) else None
