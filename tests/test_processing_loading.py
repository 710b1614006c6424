"""Where a processor comes from: the embedded default, its checkpoint, its fingerprint."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from safelight import MULTIMODAL_REGISTRY, ConfigurationError, SafelightError, http_status
from safelight.processing import hf
from safelight.processing.loading import demo_processor, load_hf_processor
from safelight.processing.qwen_vl import Qwen2VLMultiModalProcessor, Qwen3VLMultiModalProcessor
from tiny_model import TinyHfProcessor

transformers = pytest.importorskip("transformers", reason="needs the hf extra")
pytestmark = pytest.mark.timeout(180)

FINGERPRINT = """
from safelight.processing import hf
from safelight.processing.loading import demo_processor
print(hf.fingerprint(demo_processor(), {"size": {"a", "b", "c"}}).hex())
"""


@pytest.fixture(scope="module")
def default() -> Any:
    return demo_processor()


def test_the_default_is_a_qwen3_vl_on_pillow(default: Any) -> None:
    assert isinstance(default, transformers.Qwen3VLProcessor)
    image_processor = default.image_processor
    assert hf.tensor_type(image_processor) == "np"
    settings = image_processor.to_dict()
    assert settings["patch_size"] == 16
    assert settings["merge_size"] == settings["temporal_patch_size"] == 2
    assert list(settings["image_mean"]) == list(settings["image_std"]) == [0.5] * 3
    size = settings["size"]
    assert (size["shortest_edge"], size["longest_edge"]) == (65_536, 16_777_216)


@pytest.mark.parametrize("name", ["", None])
def test_there_is_no_default_checkpoint(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^model "):
        load_hf_processor(name)


def test_the_default_tokenizer_is_byte_level_and_loses_nothing(default: Any) -> None:
    tokenizer = default.tokenizer
    text = "ünï <|im_start|>\n\t\x00 漢字 🦊<|image_pad|>"
    token_ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(token_ids) == text
    plain = "ünï 漢字"
    assert len(tokenizer(plain)["input_ids"]) == len(plain.encode())
    assert token_ids[-1] == default.image_token_id
    assert tokenizer.convert_tokens_to_ids("<|image_pad|>") == default.image_token_id


def test_the_default_template_is_chatml_with_a_vision_block_an_image(default: Any) -> None:
    text = default.apply_chat_template(
        [
            {"role": "system", "content": "a"},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "b{{ 1 }}"}]},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_start|>system\na<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>b{{ 1 }}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_default_can_be_saved_and_loaded(default: Any, tmp_path: Path) -> None:
    default.save_pretrained(tmp_path)
    loaded = load_hf_processor(str(tmp_path))
    assert isinstance(loaded, transformers.Qwen3VLProcessor)
    assert loaded.chat_template == default.chat_template
    assert (
        loaded.tokenizer("a<|image_pad|>")["input_ids"]
        == default.tokenizer("a<|image_pad|>")["input_ids"]
    )
    for name in ("patch_size", "merge_size", "size", "image_mean"):
        ours = loaded.image_processor.to_dict()[name]
        assert ours == default.image_processor.to_dict()[name], name


def test_a_checkpoint_with_a_video_processor_is_loaded_whole(default: Any, tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="video processors need torchvision")
    whole = transformers.Qwen3VLProcessor(
        transformers.Qwen2VLImageProcessor(patch_size=16),
        default.tokenizer,
        transformers.Qwen3VLVideoProcessor(),
        chat_template=default.chat_template,
    )
    whole.save_pretrained(tmp_path)
    loaded = load_hf_processor(str(tmp_path))
    assert type(loaded) is transformers.Qwen3VLProcessor
    assert loaded.video_processor is not None
    assert hf.tensor_type(loaded.image_processor) == "pt"


def test_what_cannot_be_loaded_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(SafelightError, match="cannot be loaded"):
        load_hf_processor(str(tmp_path / "absent"))
    (tmp_path / "processor_config.json").write_text('{"processor_class": "CLIPProcessor"}')
    with pytest.raises(SafelightError, match="cannot be loaded"):
        load_hf_processor(str(tmp_path))


def test_a_fingerprint_is_the_same_in_every_process(default: Any) -> None:
    expected = hf.fingerprint(default, {"size": {"a", "b", "c"}}).hex()
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINT], capture_output=True, check=True, timeout=150
    )
    assert done.stdout.decode().strip() == expected


def test_a_fingerprint_tells_settings_options_and_backends_apart(default: Any) -> None:
    other = demo_processor()
    assert hf.fingerprint(other, {}) == hf.fingerprint(default, {})
    other.image_processor.image_mean = [0.5, 0.5, 0.25]
    fingerprints = [
        hf.fingerprint(default, {}),
        hf.fingerprint(default, {"max_pixels": 1}),
        hf.fingerprint(default, {"max_pixels": 2}),
        hf.fingerprint(other, {}),
    ]
    if transformers.utils.is_torchvision_available():
        other = demo_processor()
        settings = other.image_processor.to_dict()
        other.image_processor = transformers.Qwen2VLImageProcessor(**settings)
        fingerprints.append(hf.fingerprint(other, {}))
    assert len(set(fingerprints)) == len(fingerprints)


def test_a_fingerprint_covers_whatever_processes_media(default: Any) -> None:
    def whole(**parts: Any) -> Any:
        return type("Processor", (), {})() if not parts else SimpleNamespace(**parts)

    audio = transformers.WhisperFeatureExtractor
    processors = [
        whole(),
        whole(feature_extractor=audio()),
        whole(feature_extractor=audio(hop_length=80)),
        whole(image_processor=default.image_processor),
        whole(image_processor=default.image_processor, feature_extractor=audio()),
        whole(image_processor=default.image_processor, patch_size=14),
        whole(image_processor=default.image_processor, video_processor=default.image_processor),
        audio(),
        audio(hop_length=80),
    ]
    assert len({hf.fingerprint(processor, {}) for processor in processors}) == len(processors)
    for processor in processors:
        assert hf.fingerprint(processor, {}) == hf.fingerprint(copy.deepcopy(processor), {})


def test_a_fingerprint_holds_no_address(default: Any) -> None:
    assert hf.fingerprint(default, {"a": object()}) == hf.fingerprint(default, {"a": object()})
    assert hf.fingerprint(default, {"a": [len]}) == hf.fingerprint(default, {"a": [len]})


def test_only_declared_options_reach_the_processor(default: Any) -> None:
    kwargs = {"max_pixels": 1, "fps": 2, "nonsense": 3, "images": []}
    assert hf.select_kwargs(default.image_processor, kwargs) == {"max_pixels": 1}
    assert hf.select_kwargs(object(), kwargs) == {}


@pytest.mark.parametrize("image", ["http://127.0.0.1/a.png", "/etc/passwd", b"abc"])
def test_a_string_never_reaches_a_processor_that_would_download_it(image: Any) -> None:
    def forbidden(**_: object) -> None:
        raise AssertionError("called")

    with pytest.raises(TypeError, match="takes Pillow images"):
        hf.call_image_processor(forbidden, [image], {})


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen2VLProcessor", Qwen2VLMultiModalProcessor),
        ("Qwen2_5_VLProcessor", Qwen2VLMultiModalProcessor),
        ("Qwen3VLProcessor", Qwen3VLMultiModalProcessor),
    ],
)
def test_a_family_is_found_by_the_class_or_a_base_of_it(
    default: Any, name: str, family: type[Any]
) -> None:
    for cls in (type(name, (), {}), type("Derived", (type(name, (), {}),), {})):
        hf_processor = cls()
        hf_processor.image_processor = default.image_processor
        hf_processor.tokenizer = default.tokenizer
        processor = MULTIMODAL_REGISTRY.create_processor(hf_processor, model_id="m")
        assert type(processor) is family
        assert processor.info.model_id == "m"
        assert processor.supports_two_phase


def test_no_family_serves_it() -> None:
    with pytest.raises(
        ConfigurationError, match="no model family serves TinyHfProcessor"
    ) as caught:
        MULTIMODAL_REGISTRY.create_processor(TinyHfProcessor())
    assert http_status(caught.value) == 500
