"""Pillow once more: the same code with switches, a registry and guards that are ours alone.

A process may tell Pillow to load truncated files, to warn or refuse from some number of pixels on,
or to load GIFs in another mode; its switches are attributes of modules, read in the midst of a
decode, and cannot be set for one thread. This module is a package whose submodules are Pillow's
files, run a second time: what the process sets in ``PIL`` is not seen here, and what is set here is
not seen there. The compiled modules, which do the work, are shared.

Must never be used to make an image but inside `guarded`, nor hand an image out: its class is not
``PIL.Image.Image``. `safelight.media.pillow` sees to both.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NamedTuple

import PIL
from PIL import UnidentifiedImageError, __version__

__all__ = ["Guard", "Image", "UnidentifiedImageError", "__version__", "guarded"]

# This makes a package of the module: `import` looks for its submodules here.
__path__ = PIL.__path__

# What `Image.init` imports: not those that open no file, or only with a library that is not ours.
_plugins = sorted(
    {*PIL._plugins} - {"FpxImagePlugin", "MicImagePlugin", "PalmImagePlugin", "PdfImagePlugin"}
)

# Once in a process: loading one under a second name would make its types anew. An optional one may
# be missing.
_COMPILED = ("_imaging", "_webp", "_avif", "_imagingcms")

# Makers of images in the compiled module: each takes a mode and a size first.
_MAKERS = ("new", "new_block", "fill")


class Guard(NamedTuple):
    """What one decode may open and allocate. Either member raises to refuse."""

    check_format: Callable[[str], None]
    check_size: Callable[[int, int], None]


_guard: ContextVar[Guard] = ContextVar("guard")


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Ask `guard` before a plug-in opens a picture or makes an image, inner ones too."""
    token = _guard.set(guard)
    try:
        yield
    finally:
        _guard.reset(token)


def _load() -> Any:
    """Import Pillow's modules under this one, and put the guard where they open and allocate."""
    for name in _COMPILED:
        try:
            compiled = importlib.import_module(f"PIL.{name}")
        except ImportError:
            continue
        sys.modules[f"{__name__}.{name}"] = compiled
        globals()[name] = compiled
    image: Any = importlib.import_module(f"{__name__}.Image")
    image_file: Any = importlib.import_module(f"{__name__}.ImageFile")
    image.init()

    makers = {name: _sized(getattr(image.core, name)) for name in _MAKERS}
    image.core = SimpleNamespace(**vars(image.core) | makers)
    image_file.ImageFile.__init__ = _judged(image_file.ImageFile.__init__)
    # What a client's bytes are like is told by an error, not in the server's log.
    logging.getLogger(__name__).setLevel(logging.CRITICAL)
    # The guard judges instead, by the request's limit.
    image.MAX_IMAGE_PIXELS = None
    silence = SimpleNamespace(warn=_ignore)
    module: Any
    for name, module in list(sys.modules.items()):
        # A filter that makes a warning an error would end a decode by something that is no damage.
        if name.startswith(f"{__name__}.") and hasattr(module, "warnings"):
            module.warnings = silence
    return image


def _sized(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_sized(mode: str, size: tuple[int, int], *args: Any) -> Any:
        _guard.get().check_size(*size)
        return make(mode, size, *args)

    return make_sized


def _judged(initialize: Callable[..., None]) -> Callable[..., None]:
    def initialize_judged(self: Any, *args: Any, **kwargs: Any) -> None:
        _guard.get().check_format(self.format)
        initialize(self, *args, **kwargs)

    return initialize_judged


def _ignore(*_args: Any, **_kwargs: Any) -> None:
    pass


Image = _load()
