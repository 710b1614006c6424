"""A request's media as items: two views, selections, sizes without decoding."""

from safelight.parse.embeddings import (
    DictEmbeddingItems,
    EmbeddingItems,
    ImageEmbeddingItems,
    check_embedding,
)
from safelight.parse.image import HfImageItem, ImageItem, ImageProcessorItems, ImageSize
from safelight.parse.items import ModalityDataItems, MultiModalDataItems, ProcessorBatchItems
from safelight.parse.parser import (
    ModalityData,
    ModalityDataParser,
    MultiModalDataDict,
    MultiModalDataParser,
)

__all__ = [
    "DictEmbeddingItems",
    "EmbeddingItems",
    "HfImageItem",
    "ImageEmbeddingItems",
    "ImageItem",
    "ImageProcessorItems",
    "ImageSize",
    "ModalityData",
    "ModalityDataItems",
    "ModalityDataParser",
    "MultiModalDataDict",
    "MultiModalDataItems",
    "MultiModalDataParser",
    "ProcessorBatchItems",
    "check_embedding",
]
