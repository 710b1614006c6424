"""Where a transformers processor comes from: a checkpoint, or the demo, by name.

Owns loading, and the demo's processor, which is made in code so that nothing is downloaded. Works
without torch: a processor that demands a video processor, which demands torch, is built without.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from safelight.errors import ConfigurationError, SafelightError

__all__ = ["demo_processor", "load_hf_processor"]

_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# ChatML, with one vision block an image.
_CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def load_hf_processor(model: str) -> Any:
    """Return the transformers processor of `model`, a local path or a name on the hub.

    Raises:
        ConfigurationError: `model` names nothing: there is no default.
        SafelightError: The model cannot be loaded, or transformers is not installed.
    """
    if not model:
        raise ConfigurationError("model must be a checkpoint: a local path or a name on the hub")
    transformers = _transformers()
    try:
        if transformers.utils.is_torchvision_available():
            # A checkpoint without a video processor, as one that was saved without torch, does not
            # load whole.
            with suppress(Exception):
                return transformers.AutoProcessor.from_pretrained(model)
        return _load_without_video(transformers, model)
    except SafelightError:
        raise
    except Exception as error:
        raise SafelightError(f"the processor of {model} cannot be loaded") from error


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise SafelightError("transformers is not installed: pip install safelight[hf]") from error
    return transformers


def demo_processor() -> Any:
    """Return a toy without a checkpoint, for demonstrations and tests; no model matches it.

    A Qwen3-VL processor (patch 16, merge 2, temporal 2, mean and standard deviation 0.5, 65,536 to
    16,777,216 pixels) on the Pillow backend, with a tokenizer that has a token a byte.

    Raises:
        SafelightError: transformers is not installed.
    """
    _transformers()
    from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessorPil, Qwen3VLProcessor

    image_processor = Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": 65_536, "longest_edge": 16_777_216},
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_tokenizer(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL_TOKENS[1:]),
    )
    return _without_video(Qwen3VLProcessor)(
        image_processor, tokenizer, chat_template=_CHAT_TEMPLATE
    )


def _byte_level_tokenizer() -> Any:
    """Return a tokenizer with one token a byte and the special tokens of the family."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL_TOKENS])
    return tokenizer


def _load_without_video(transformers: Any, model: str) -> Any:
    """Build a checkpoint's processor from its parts, on Pillow where there is no torch."""
    config, _ = transformers.ProcessorMixin.get_processor_dict(model)
    name = config.get("processor_class")
    processor_class = getattr(transformers, name or "", None)
    if processor_class is None:
        raise SafelightError(f"the processor of {model} names no class that transformers has")
    backend = {} if transformers.utils.is_torchvision_available() else {"backend": "pil"}
    image_processor = transformers.AutoImageProcessor.from_pretrained(model, **backend)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    return _without_video(processor_class)(
        image_processor, tokenizer, chat_template=tokenizer.chat_template
    )


@cache
def _without_video(processor_class: Any) -> Any:
    """Return a subclass of `processor_class`, of the same name, that has no video processor."""
    names = [name for name in processor_class.get_attributes() if name != "video_processor"]
    return type(
        processor_class.__name__,
        (processor_class,),
        {"get_attributes": classmethod(lambda _: list(names))},
    )
