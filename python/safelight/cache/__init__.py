"""Caches: of any media by key, of processed items, of encoder outputs.

Owns the names; each cache has its own file.
"""

from __future__ import annotations

from safelight.cache.media import CacheStats, MediaCache
from safelight.cache.processor import MultiModalProcessorOnlyCache, ProcessorCacheEntry

__all__ = ["CacheStats", "MediaCache", "MultiModalProcessorOnlyCache", "ProcessorCacheEntry"]
