"""Pillow images upright: the one place that turns them.

Owns how an orientation is applied and taken out of an image's metadata, so that nothing turns it
again. Whoever has a header passes the orientation that it states; an image that came without one
is asked itself. Must never lose pixels over damaged metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["stated_orientation", "turned_size", "upright", "upright_copy"]

_TAG = 0x0112

# Where Pillow looks for an orientation.
_SOURCES = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")


def stated_orientation(image: Image.Image) -> int:
    """Return the orientation, 1 to 8, that is still to be applied; 1 where none can be read.

    Pixels are loaded for a PNG alone that states none in front of them.
    """
    # The size of a TIFF that states one is upright at once, and its pixels are once loaded.
    if _TAG in getattr(image, "tag_v2", ()):
        return 1
    try:
        orientation = image.getexif().get(_TAG, 1)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - damaged metadata states nothing
        return 1
    return orientation if orientation in range(1, 9) else 1


def turned_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return the upright width and height of an image of `size`."""
    return (size[1], size[0]) if orientation >= 5 else size


def upright(image: Image.Image) -> Image.Image:
    """Return `image` upright as it states itself, unchanged where there is nothing to turn."""
    image.load()
    return image if stated_orientation(image) == 1 else upright_copy(image)


def upright_copy(image: Image.Image, orientation: int | None = None) -> Image.Image:
    """Return an upright copy of `image`, which states no orientation and keeps no file open.

    Args:
        image: The image; its pixels are loaded.
        orientation: What its header states; None asks the image.
    """
    image.load()
    # Loading has turned a TIFF, whatever its header states.
    if orientation is None or image.format == "TIFF":
        orientation = stated_orientation(image)
    turned = image.copy() if orientation == 1 else image.transpose(_method(orientation))
    if stated_orientation(turned) != 1:
        _drop_orientation(turned)
    return turned


def _method(orientation: int) -> Image.Transpose:
    # Not at the top: whoever has an image has imported it.
    from PIL import Image

    return {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }[orientation]


def _drop_orientation(image: Image.Image) -> None:
    """Keep what EXIF says besides, where Pillow can write it; XMP goes as a whole."""
    try:
        exif = image.getexif()
        del exif[_TAG]
        rest = exif.tobytes() if exif else None
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - what cannot be written back is dropped
        rest = None
    for source in _SOURCES:
        image.info.pop(source, None)
    if rest is not None:
        image.info["exif"] = rest
