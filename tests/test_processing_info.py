"""What a model says about itself: the operator's options, decoders, and the fingerprint of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from safelight import (
    ConfigurationError,
    ImageMediaIO,
    MultiModalProcessorOnlyCache,
    ProcessingInfo,
    RequestError,
    http_status,
)
from tiny_model import TinyHfProcessor, make_inputs, make_processor, png

pytest.importorskip("transformers", reason="needs the hf extra")
pytestmark = pytest.mark.timeout(180)


def fingerprint(info: type[ProcessingInfo] = ProcessingInfo, **options: Any) -> bytes:
    return info(TinyHfProcessor(), **options).fingerprint


# --- options ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"media_io_kwargs": [1]}, "media_io_kwargs must be a mapping"),
        ({"media_io_kwargs": {1: {}}}, "media_io_kwargs must be a mapping"),
        ({"media_io_kwargs": {"image": [1]}}, "media_io_kwargs of image must be a mapping"),
        ({"media_io_kwargs": {"smell": {}}}, "media_io_kwargs: the model takes no smell input"),
        ({"media_io_kwargs": {"image": {"mode": "L"}}}, "media_io_kwargs of image: .*'mode'"),
        (
            {"media_io_kwargs": {"image": {"max_image_pixels": -1}}},
            "media_io_kwargs of image: max_image_pixels must not be negative",
        ),
        ({"mm_processor_kwargs": "abc"}, "mm_processor_kwargs must be a mapping"),
        ({"limit_mm_per_prompt": [1]}, "limit_mm_per_prompt must be a mapping"),
        ({"limit_mm_per_prompt": {"image": -1}}, "limit_mm_per_prompt of image must be an int"),
        ({"limit_mm_per_prompt": {"image": "1"}}, "limit_mm_per_prompt of image must be an int"),
        ({"limit_mm_per_prompt": {"image": True}}, "limit_mm_per_prompt of image must be an int"),
        ({"limit_mm_per_prompt": {"smell": 0}}, "limit_mm_per_prompt: the model takes no smell"),
        ({"limit_mm_per_prompt": {"video": 1}}, "limit_mm_per_prompt: the model takes no video"),
        ({"mm_hasher_algorithm": "md5"}, "mm_hasher_algorithm: hash algorithm must be one of"),
        ({"mm_hasher_algorithm": ["md5"]}, "mm_hasher_algorithm: "),
        ({"mm_uuid_policy": "none"}, "mm_uuid_policy must be one of verbatim, salted, ignored"),
        ({"mm_uuid_policy": "salted"}, "mm_uuid_salt goes with"),
    ],
)
def test_an_operators_option_fails_at_once_by_its_name(options: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        ProcessingInfo(TinyHfProcessor(), **options)
    assert http_status(caught.value) == 500


def test_a_modality_that_is_not_there_may_be_limited_to_none() -> None:
    info = make_processor(limit_mm_per_prompt={"video": 0, "image": 2}).info
    assert info.allowed_mm_limits == {"image": 2}


def test_a_decoder_that_cannot_be_made_fails_at_once() -> None:
    class BrokenMediaIO(ImageMediaIO):
        def __init__(self, **_: Any) -> None:
            raise RuntimeError("no codec")

    class Info(ProcessingInfo):
        media_ios: ClassVar = {"image": BrokenMediaIO}

    with pytest.raises(ConfigurationError, match="media_io_kwargs of image: no codec"):
        make_processor(info=Info)


# --- decoders ---


class GrayInfo(ProcessingInfo):
    """A family with a decoder of its own."""

    def _make_media_io(
        self, modality: str, kwargs: Mapping[str, Any], *, decoded_budget: Any
    ) -> ImageMediaIO:
        return ImageMediaIO(**{**kwargs, "image_mode": "L"}, decoded_budget=decoded_budget)


def test_a_family_makes_its_decoders_behind_the_check_of_trust() -> None:
    info = make_processor(info=GrayInfo, media_io_kwargs={"image": {"max_image_pixels": 7}}).info
    media_io = info.get_media_io("image")
    assert (media_io.image_mode, media_io.max_image_pixels) == ("L", 7)
    with pytest.raises(RequestError, match="not accepted from requests"):
        info.get_media_io("image", {"max_image_pixels": 8})


def test_options_are_merged_as_the_modality_says() -> None:
    class StrictMediaIO(ImageMediaIO):
        @classmethod
        def merge_kwargs(cls, default_kwargs: Any, runtime_kwargs: Any) -> dict[str, Any]:
            return {**(runtime_kwargs or {}), **(default_kwargs or {})}

    class Info(ProcessingInfo):
        media_ios: ClassVar = {"image": StrictMediaIO}

    options = {"image": {"max_image_pixels": 7}}
    info = make_processor(info=Info, media_io_kwargs=options, trust_request_kwargs=True).info
    assert info.get_media_io("image", {"max_image_pixels": 8}).max_image_pixels == 7


# --- fingerprints ---


def test_decode_options_that_change_pixels_are_in_the_fingerprint() -> None:
    plain = fingerprint()
    gray, red = {"image_mode": "L"}, {"rgba_background_color": [255, 0, 0]}
    others = [fingerprint(media_io_kwargs={"image": options}) for options in (gray, red)]
    assert len({plain, *others, fingerprint(GrayInfo)}) == 3, "gray is gray, whoever asks for it"
    spelled_out = {"image_mode": "RGB", "rgba_background_color": (255, 255, 255)}
    assert fingerprint(media_io_kwargs={"image": spelled_out}) == plain
    assert fingerprint(media_io_kwargs={"image": {"max_image_pixels": 9}}) == plain


def test_decoders_of_another_class_are_told_apart() -> None:
    class OtherMediaIO(ImageMediaIO):
        pass

    class Info(ProcessingInfo):
        media_ios: ClassVar = {"image": OtherMediaIO}

    assert fingerprint(Info) != fingerprint()


def test_a_family_adds_to_its_fingerprint() -> None:
    class Info(ProcessingInfo):
        def get_fingerprint_factors(self) -> dict[str, Any]:
            return {**super().get_fingerprint_factors(), "tiles": 4}

    assert fingerprint(Info) != fingerprint()


def test_processors_with_other_backgrounds_share_a_cache_but_no_pixels() -> None:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    payload = png(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))
    for background in ([255, 255, 255], [255, 0, 0]):
        options = {"image": {"rgba_background_color": background}}
        processor = make_processor(media_io_kwargs=options)
        ref = processor.info.get_media_io("image").load_bytes_ref(payload)
        result = processor.apply(make_inputs(processor, [ref], cache=cache, uuids=["u"]))
        assert result["mm_cache_hits"] == {"image": [False]}
        pixels = result["mm_kwargs"].get_data()["pixel_values"]
        assert np.array_equal(pixels, [background])
