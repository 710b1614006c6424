"""Which family serves which transformers processor.

Owns the table and the look-up; a third party registers its own family here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from safelight.errors import ConfigurationError
from safelight.processing.info import ProcessingInfo
from safelight.processing.processor import BaseMultiModalProcessor
from safelight.processing.qwen_vl import (
    Qwen2VLMultiModalProcessor,
    Qwen2VLProcessingInfo,
    Qwen3VLMultiModalProcessor,
)

__all__ = ["MULTIMODAL_REGISTRY", "MultiModalRegistry"]

P = TypeVar("P", bound=type[BaseMultiModalProcessor])


class MultiModalRegistry:
    """Families by the class name of the transformers processor that they serve."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[type[BaseMultiModalProcessor], type[ProcessingInfo]]] = {}

    def register_processor(self, *class_names: str, info: type[ProcessingInfo]) -> Callable[[P], P]:
        """Return a decorator that makes a family serve the processors named `class_names`."""

        def register(family: P) -> P:
            for name in class_names:
                self._families[name] = (family, info)
            return family

        return register

    def create_processor(self, hf_processor: Any, **options: Any) -> BaseMultiModalProcessor:
        """Return the processor for a model.

        Args:
            hf_processor: A transformers processor; the family is found by its class or the
                nearest base class that has one.
            options: Arguments of the family's `ProcessingInfo`.

        Raises:
            ConfigurationError: No family serves it, or an option is malformed.
        """
        for base in type(hf_processor).__mro__:
            if base.__name__ in self._families:
                family, info = self._families[base.__name__]
                return family(info(hf_processor, **options))
        raise ConfigurationError(f"no model family serves {type(hf_processor).__name__}")


MULTIMODAL_REGISTRY = MultiModalRegistry()
MULTIMODAL_REGISTRY.register_processor(
    "Qwen2VLProcessor", "Qwen2_5_VLProcessor", info=Qwen2VLProcessingInfo
)(Qwen2VLMultiModalProcessor)
MULTIMODAL_REGISTRY.register_processor("Qwen3VLProcessor", info=Qwen2VLProcessingInfo)(
    Qwen3VLMultiModalProcessor
)
