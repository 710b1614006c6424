"""Image processors in Rust, to the very bytes of transformers. One declaration a model family."""

from safelight.processing.native.processor import ImageLayout, ImageProcessor, image_processor

__all__ = ["ImageLayout", "ImageProcessor", "image_processor"]
