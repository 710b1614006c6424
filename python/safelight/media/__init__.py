"""Bytes to refs, and the decode itself. One file a modality."""

from safelight.media.base import MediaIO
from safelight.media.image import ImageMediaIO

__all__ = ["ImageMediaIO", "MediaIO"]
