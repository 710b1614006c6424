"""Handle media without decoding it.

Media that a request brings travels as a reference: the encoded payload, a cache identity derived
from it, and a decode that is deferred. Everything public can be imported from here; what is not
small is loaded when it is first used, so that importing safelight costs little more than numpy
and Pillow do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from safelight._safelight import __version__
from safelight.errors import (
    BlockedURLError,
    CacheMissError,
    ConfigurationError,
    DecodeError,
    FetchError,
    FetchRefusedError,
    HeaderError,
    LimitError,
    MediaError,
    PayloadTooLargeError,
    RawRefError,
    ReleasedError,
    RequestError,
    SafelightError,
    SpecError,
    TransientFetchError,
    UnsupportedMediaError,
)

# Eager also because a function must win over the submodule of the same name, here and below.
from safelight.features import features
from safelight.key import derive_media_key, derive_media_keys
from safelight.probe import ImageHeader, NeedMoreBytes, probe, probe_files, probe_prefix
from safelight.spec import DecodeSpec

if TYPE_CHECKING:
    from safelight.budget import DecodedBudget, DownloadBudget
    from safelight.cache import CacheStats, MediaCache, MultiModalProcessorOnlyCache
    from safelight.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector
    from safelight.decodes import (
        MediaDecodeJob,
        collect_media_decodes,
        collect_media_decodes_async,
        submit_media_decodes,
        submit_media_decodes_async,
        try_submit_media_decodes,
    )
    from safelight.hashing import MultiModalHasher
    from safelight.http_errors import error_body, http_status
    from safelight.inputs import (
        MultiModalFieldConfig,
        MultiModalKwargsItem,
        MultiModalKwargsItems,
        PlaceholderRange,
    )
    from safelight.media import ImageMediaIO, MediaIO
    from safelight.parse import (
        ImageEmbeddingItems,
        ImageProcessorItems,
        ModalityDataItems,
        MultiModalDataItems,
        MultiModalDataParser,
    )
    from safelight.pool import MediaPool, PoolStats, media_pool
    from safelight.processing import (
        MULTIMODAL_REGISTRY,
        BaseMultiModalProcessor,
        MultiModalApplyState,
        MultiModalInputs,
        ProcessingInfo,
        ProcessorInputs,
        image_processor,
    )
    from safelight.ref import MediaRef
    from safelight.renderer import RenderedChat, RenderedItem, Renderer

# Loaded on first use: name to module.
_LAZY = {
    name: module
    for module, names in {
        "budget": "DecodedBudget DownloadBudget",
        "cache": "CacheStats MediaCache MultiModalProcessorOnlyCache",
        "connector": "MEDIA_CONNECTOR_REGISTRY MediaConnector",
        "decodes": "MediaDecodeJob collect_media_decodes collect_media_decodes_async "
        "submit_media_decodes submit_media_decodes_async try_submit_media_decodes",
        "hashing": "MultiModalHasher",
        "http_errors": "error_body http_status",
        "inputs": "MultiModalFieldConfig MultiModalKwargsItem MultiModalKwargsItems "
        "PlaceholderRange",
        "media": "ImageMediaIO MediaIO",
        "parse": "ImageEmbeddingItems ImageProcessorItems ModalityDataItems MultiModalDataItems "
        "MultiModalDataParser",
        "processing": "MULTIMODAL_REGISTRY BaseMultiModalProcessor MultiModalApplyState "
        "MultiModalInputs ProcessingInfo ProcessorInputs image_processor",
        "pool": "MediaPool PoolStats media_pool",
        "ref": "MediaRef",
        "renderer": "RenderedChat RenderedItem Renderer",
    }.items()
    for name in names.split()
}

__all__ = [
    "BaseMultiModalProcessor",
    "BlockedURLError",
    "CacheMissError",
    "CacheStats",
    "ConfigurationError",
    "DecodeError",
    "DecodeSpec",
    "DecodedBudget",
    "DownloadBudget",
    "FetchError",
    "FetchRefusedError",
    "HeaderError",
    "ImageEmbeddingItems",
    "ImageHeader",
    "ImageMediaIO",
    "ImageProcessorItems",
    "LimitError",
    "MEDIA_CONNECTOR_REGISTRY",
    "MULTIMODAL_REGISTRY",
    "MediaCache",
    "MediaConnector",
    "MediaDecodeJob",
    "MediaError",
    "MediaIO",
    "MediaPool",
    "MediaRef",
    "ModalityDataItems",
    "MultiModalApplyState",
    "MultiModalDataItems",
    "MultiModalDataParser",
    "MultiModalFieldConfig",
    "MultiModalHasher",
    "MultiModalInputs",
    "MultiModalKwargsItem",
    "MultiModalKwargsItems",
    "MultiModalProcessorOnlyCache",
    "NeedMoreBytes",
    "PayloadTooLargeError",
    "PlaceholderRange",
    "PoolStats",
    "ProcessingInfo",
    "ProcessorInputs",
    "RawRefError",
    "ReleasedError",
    "RenderedChat",
    "RenderedItem",
    "Renderer",
    "RequestError",
    "SafelightError",
    "SpecError",
    "TransientFetchError",
    "UnsupportedMediaError",
    "__version__",
    "collect_media_decodes",
    "collect_media_decodes_async",
    "derive_media_key",
    "derive_media_keys",
    "error_body",
    "features",
    "http_status",
    "image_processor",
    "media_pool",
    "probe",
    "probe_files",
    "probe_prefix",
    "submit_media_decodes",
    "submit_media_decodes_async",
    "try_submit_media_decodes",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
