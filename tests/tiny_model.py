"""A model family small enough to see through, for tests of the request path.

Its tokenizer gives a token a character, its image processor a row for each 8 by 8 block of an
image, and ``§`` stands for an image in a prompt. Everything of safelight's is real.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from PIL import Image

from safelight import (
    BaseMultiModalProcessor,
    DecodeSpec,
    MediaRef,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalInputs,
    MultiModalKwargsItems,
    MultiModalProcessorOnlyCache,
    ProcessingInfo,
    ProcessorInputs,
)
from safelight.processing import PromptReplacement

IMAGE_TOKEN = "§"
IMAGE_TOKEN_ID = ord(IMAGE_TOKEN)


class TinyImageProcessorKwargs(TypedDict, total=False):
    scale: float


class TinyImageProcessor:
    """Means of 8 by 8 blocks. Counts its calls; `before` runs in each and may wait or raise."""

    backend = "pil"
    valid_kwargs = TinyImageProcessorKwargs

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.threads: set[int] = set()
        self.before: Callable[[list[Any]], object] = len

    def to_dict(self) -> dict[str, Any]:
        return {"block": 8}

    def __call__(
        self, images: list[Any], return_tensors: str, scale: float = 1.0
    ) -> dict[str, Any]:
        assert return_tensors == "np"
        self.calls.append(images)
        self.threads.add(threading.get_ident())
        self.before(images)
        arrays = [np.asarray(image, np.float32) for image in images]
        blocks = [array[::8, ::8].reshape(-1, 3) * scale for array in arrays]
        return {
            "pixel_values": np.concatenate(blocks),
            "block_counts": np.array([[len(rows)] for rows in blocks]),
        }


class TinyTokenizer:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, text: str) -> dict[str, list[int]]:
        self.calls.append(text)
        return {"input_ids": list(map(ord, text))}


class TinyHfProcessor:
    def __init__(self) -> None:
        self.tokenizer = TinyTokenizer()
        self.image_processor = TinyImageProcessor()
        self.image_token_id = IMAGE_TOKEN_ID

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        if any(message["role"] == "nobody" for message in messages):
            raise LookupError("no such role")
        return "".join(
            message["content"]
            if isinstance(message["content"], str)
            else "".join(
                IMAGE_TOKEN if part["type"] == "image" else part["text"]
                for part in message["content"]
            )
            for message in messages
        )


class TinyProcessor(BaseMultiModalProcessor):
    def _get_mm_fields_config(
        self, hf_inputs: Mapping[str, Any], hf_processor_mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, MultiModalFieldConfig]:
        counts = [int(count) for (count,) in hf_inputs.get("block_counts", ())]
        return {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", counts),
            "block_counts": MultiModalFieldConfig.batched("image"),
            "image_embeds": MultiModalFieldConfig.batched("image"),
        }

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, Any],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptReplacement]:
        def expand(index: int) -> list[int]:
            item = out_mm_kwargs["image"][index].get_data()
            rows = item.get("pixel_values", item.get("image_embeds"))
            assert rows is not None
            return [IMAGE_TOKEN_ID] * len(rows)

        return [PromptReplacement("image", [IMAGE_TOKEN_ID], expand)]


def make_processor(
    family: type[BaseMultiModalProcessor] = TinyProcessor,
    info: type[ProcessingInfo] = ProcessingInfo,
    **options: Any,
) -> Any:
    """A processor of the tiny model; `Any`, so that tests reach the fakes in it."""
    return family(info(TinyHfProcessor(), **options))


class Picture:
    """A picture whose decode can be counted, held at a gate, and made to fail.

    Args:
        name: What its payload, and therefore its identity, is made of.
        size: Width and height; a block each 8 pixels.
        error: What the decode raises.
        gate: What the decode waits for, once it has set `started`.
    """

    def __init__(
        self,
        name: str,
        size: tuple[int, int] = (16, 8),
        *,
        error: BaseException | None = None,
        gate: threading.Event | None = None,
    ) -> None:
        self.payload = name.encode()
        self.size = size
        self.error = error
        self.gate = gate
        self.started = threading.Event()
        self.decodes = 0

    def decode(self) -> Image.Image:
        self.decodes += 1
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return self.image()

    def image(self) -> Image.Image:
        seed = list(self.payload)
        rng = np.random.default_rng(seed)
        width, height = self.size
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))

    def ref(self) -> MediaRef[Image.Image]:
        return MediaRef(self.decode, self.payload, DecodeSpec())


def make_inputs(
    processor: BaseMultiModalProcessor,
    items: Sequence[Any] | Mapping[str, Any],
    *,
    cache: MultiModalProcessorOnlyCache | None = None,
    prompt: str | None = None,
    uuids: Sequence[str | None] | None = None,
    **options: Any,
) -> ProcessorInputs:
    """A request of `items`, each after a letter of the prompt."""
    data = items if isinstance(items, Mapping) else list(items)
    if prompt is None:
        prompt = "".join(chr(97 + i % 26) + IMAGE_TOKEN for i in range(len(items)))
    return ProcessorInputs(
        prompt=prompt,
        mm_data_items=processor.data_parser.parse_mm_data({"image": data} if data else {}),
        mm_uuid_items=None if uuids is None else {"image": uuids},
        cache=cache,
        **options,
    )


def same(first: MultiModalInputs, second: MultiModalInputs) -> bool:
    """Whether a model runner would be given the same, bit by bit."""
    one, two = first["mm_kwargs"].get_data(), second["mm_kwargs"].get_data()
    return (
        first["prompt_token_ids"] == second["prompt_token_ids"]
        and first["mm_placeholders"] == second["mm_placeholders"]
        and first["mm_hashes"] == second["mm_hashes"]
        and one.keys() == two.keys()
        and all(
            data.dtype == two[name].dtype and np.array_equal(data, two[name])
            for name, data in one.items()
        )
    )


def png(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


def data_url(payload: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(payload).decode()}"


def image_part(url: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **fields}
