"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Owns what is special about the family: pixels as rows of flattened patches, one grid
``[frames, rows, columns]`` an item, and one prompt token for each ``merge_size`` squared patches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from safelight.errors import LimitError, RequestError
from safelight.inputs import MultiModalFieldConfig, MultiModalKwargsItems
from safelight.parse import (
    DictEmbeddingItems,
    ImageEmbeddingItems,
    ImageProcessorItems,
    ModalityDataItems,
    MultiModalDataItems,
    MultiModalDataParser,
    check_embedding,
)
from safelight.processing.identity import scope_mm_kwargs
from safelight.processing.info import ProcessingInfo
from safelight.processing.processor import BaseMultiModalProcessor
from safelight.processing.prompt_updates import PromptReplacement
from safelight.ref import MediaRef

__all__ = ["Qwen2VLMultiModalProcessor", "Qwen2VLProcessingInfo", "Qwen3VLMultiModalProcessor"]

# Names of the bounds of a processed image's pixels: the families' own, and in ``size``.
_EDGES = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
_LAYOUT_KWARGS = frozenset(("patch_size", "temporal_patch_size", "merge_size"))

# Beyond this, `smart_resize` of transformers refuses an image.
_MAX_ASPECT_RATIO = 200


class Qwen2VLMultiModalDataParser(MultiModalDataParser):
    """A parser that takes embeddings together with their grids.

    Args:
        merge_size: Patches on each side of the square that becomes one token.
    """

    def __init__(self, merge_size: int) -> None:
        super().__init__()
        self._merge_size = merge_size

    def _parse_image_embedding_dict(
        self, data: Mapping[str, Any]
    ) -> ModalityDataItems[Any, Any] | None:
        return DictEmbeddingItems(
            data,
            "image",
            required_fields={"image_embeds", "image_grid_thw"},
            fields_factory=lambda fields: _embedding_fields(fields, self._merge_size),
        )


class Qwen2VLProcessingInfo(ProcessingInfo):
    """What the Qwen-VL models say about themselves."""

    def get_data_parser(self) -> MultiModalDataParser:
        """A parser that takes embeddings together with their grids."""
        return Qwen2VLMultiModalDataParser(self.get_merge_size(self.mm_processor_kwargs))

    def get_merge_size(self, kwargs: Mapping[str, Any]) -> int:
        """Patches on each side of the square that becomes one token."""
        return int(kwargs.get("merge_size") or self.image_processor.merge_size)

    def get_placeholder_str(self, modality: str) -> str | None:
        """The family's vision block around one placeholder token."""
        token = super().get_placeholder_str(modality)
        return None if token is None else f"<|vision_start|>{token}<|vision_end|>"

    @property
    def image_token_id(self) -> int:
        """Id of the token that stands for an image in a prompt."""
        return int(self.hf_processor.image_token_id)


class Qwen2VLMultiModalProcessor(BaseMultiModalProcessor):
    """Qwen2-VL and Qwen2.5-VL.

    Items have ``pixel_values``, float32 of shape ``[patches, 3 * temporal * patch * patch]``, and
    ``image_grid_thw``, int64 of shape ``[3]``; or ``image_embeds`` in place of the pixels, of
    shape ``[tokens, hidden]``.
    """

    info: Qwen2VLProcessingInfo

    # Neither backend of the image processor keeps state between calls.
    processes_in_parallel = True

    def _call_hf_processor(
        self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return super()._call_hf_processor(mm_data, self._with_size(mm_kwargs))

    def _with_size(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Express ``min_pixels`` and ``max_pixels``, which transformers deprecates, by ``size``."""
        bounds = {
            edge: kwargs[name] for name, edge in _EDGES.items() if kwargs.get(name) is not None
        }
        others = {name: value for name, value in kwargs.items() if name not in _EDGES}
        if not bounds:
            return others
        return {**others, "size": {**(others.get("size") or self._own_size()), **bounds}}

    def _own_size(self) -> dict[str, Any]:
        return dict(self.info.image_processor.size)

    def _validate_kwargs(self, modality: str, kwargs: Mapping[str, Any]) -> None:
        super()._validate_kwargs(modality, kwargs)
        server = scope_mm_kwargs(self.info.mm_processor_kwargs, modality)
        for name in _LAYOUT_KWARGS & kwargs.keys():
            # The model was made for its own; others let a pixel become any number of them.
            own = server.get(name, getattr(self.info.image_processor, name))
            if kwargs[name] != own:
                raise RequestError(f"{name} is {own}, and not a request's to set")
        requested = self._with_size(kwargs).get("size")
        if not isinstance(requested, Mapping):
            return
        limit = {**self._own_size(), **(self._with_size(server).get("size") or {})}["longest_edge"]
        least = requested.get("shortest_edge")
        if isinstance(least, (int, float)) and least > limit:
            # An image is enlarged to it, however small it came.
            raise RequestError(f"min_pixels is over the model's max_pixels {limit}")

    def _validate_item(
        self, mm_items: MultiModalDataItems, modality: str, index: int, kwargs: Mapping[str, Any]
    ) -> None:
        items = mm_items[modality]
        if isinstance(items, ImageEmbeddingItems):
            raise RequestError("image embeddings must come with their image_grid_thw")
        if not isinstance(items, ImageProcessorItems) or not _is_size_known(items.get_raw(index)):
            return
        width, height = items.get_image_size(index)
        if max(width, height) > _MAX_ASPECT_RATIO * min(width, height):
            raise LimitError(
                f"image is {width}x{height}, over aspect ratio {_MAX_ASPECT_RATIO}",
                limit=_MAX_ASPECT_RATIO,
                # Rounded up, so that what is over the limit reads as over it.
                actual=-(-max(width, height) // max(1, min(width, height))),
            )

    def _get_mm_fields_config(
        self, hf_inputs: Mapping[str, Any], hf_processor_mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, MultiModalFieldConfig]:
        return _image_fields(hf_inputs, self.info.get_merge_size(hf_processor_mm_kwargs))

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, Any],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptReplacement]:
        token_id = self.info.image_token_id
        merge_area = self.info.get_merge_size(hf_processor_mm_kwargs) ** 2

        def expand(index: int) -> list[int]:
            grid = out_mm_kwargs["image"][index]["image_grid_thw"].data
            return [token_id] * (_patch_count(grid) // merge_area)

        return [PromptReplacement("image", [token_id], expand)]


class Qwen3VLMultiModalProcessor(Qwen2VLMultiModalProcessor):
    """Qwen3-VL: the same layout, with patches of 16 pixels."""


def _image_fields(
    hf_inputs: Mapping[str, Any], merge_size: int
) -> Mapping[str, MultiModalFieldConfig]:
    """The layout of pixels or embeddings, by the grids that come with them."""
    patches = [_patch_count(grid) for grid in hf_inputs["image_grid_thw"]]
    tokens = [count // merge_size**2 for count in patches]
    return {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", patches),
        "image_embeds": MultiModalFieldConfig.flat_from_sizes("image", tokens),
        "image_grid_thw": MultiModalFieldConfig.batched("image"),
    }


def _embedding_fields(
    fields: Mapping[str, Any], merge_size: int
) -> Mapping[str, MultiModalFieldConfig]:
    """The layout of embeddings that a client brought, once they and their grids make sense.

    Of embeddings and grids alone: pixels would go around the processor as well.

    Raises:
        RequestError: The embeddings are not of floats and ``(tokens, hidden)``, or the grids are
            not rows of three positive integers, whole tokens each.
    """
    check_embedding(fields["image_embeds"], "image", 2, None)
    grids = fields["image_grid_thw"]
    is_whole = not (hasattr(grids, "is_floating_point") and grids.is_floating_point()) and not (
        hasattr(grids, "dtype") and getattr(grids.dtype, "kind", "i") not in "iu"
    )
    if not is_whole or len(grids.shape) != 2 or grids.shape[1] != 3:
        raise RequestError("image_grid_thw must be integers of shape (items, 3)")
    for frames, rows, columns in grids.tolist():
        if min(frames, rows, columns) < 1 or rows % merge_size or columns % merge_size:
            raise RequestError(f"image_grid_thw must be positive, in multiples of {merge_size}")
    layouts = _image_fields(fields, merge_size)
    return {name: layouts[name] for name in ("image_embeds", "image_grid_thw")}


def _patch_count(grid: Any) -> int:
    return math.prod(int(side) for side in grid)


def _is_size_known(raw: Any) -> bool:
    """Whether an image's size is at hand without decoding it."""
    return raw is not None and not (isinstance(raw, MediaRef) and raw.header is None)
