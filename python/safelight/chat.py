"""Chat requests in the shape of OpenAI's API: messages to template input and media parts.

Owns what a document, a message and a content part may hold: what is brought is used, or refused by
its name. Must never fetch or open anything: a part's URL is carried, not followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from safelight.errors import RequestError
from safelight.inputs import check_uuid

__all__ = ["ChatRequest", "MediaPart", "chat_arguments", "field_name", "parse_chat"]

# What `Renderer.render_chat` takes of a document.
_ARGUMENTS = frozenset(
    "messages media_io_kwargs mm_processor_kwargs skip_mm_cache tools tool_choice documents "
    "reasoning_effort chat_template_kwargs add_generation_prompt continue_final_message".split()
)
# Fields of a chat completion that say how the engine samples and answers. Rendering reads none.
_IGNORED = frozenset(
    "model temperature top_p top_k min_p n best_of seed stop stop_token_ids stream stream_options "
    "max_tokens max_completion_tokens min_tokens ignore_eos frequency_penalty presence_penalty "
    "repetition_penalty length_penalty logit_bias logprobs top_logprobs prompt_logprobs "
    "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output "
    "parallel_tool_calls response_format user metadata store service_tier request_id "
    "priority".split()
)

# A template prints a role as it is, so that it must not hold control tokens or line breaks.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)

# Types of parts with the field that holds their text.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_IMAGES = ("image_url", "input_image")
# Types of parts of other modalities.
_OTHERS = {
    "video_url": "video",
    "input_video": "video",
    "video_embeds": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
}
# Hints of OpenAI's and Anthropic's that change nothing here: how closely to look at an image, and
# where a prefix cache of theirs may cut.
_HINTS = frozenset(("detail", "cache_control"))


@dataclass(frozen=True)
class MediaPart:
    """One item of media in a chat.

    Attributes:
        modality: ``"image"``.
        index: Position among all items of the modality in the chat, from 0.
        url: Where it is; None when only a UUID was given.
        uuid: The client's identity for it, or None.
    """

    modality: str
    index: int
    # Not in the repr: it may be a payload of megabytes, or hold credentials.
    url: str | None = field(repr=False)
    uuid: str | None = None


@dataclass(frozen=True)
class ChatRequest:
    """A parsed chat.

    Attributes:
        messages: What a chat template takes: media parts are ``{"type": "image"}`` and nothing
            else, so that no template and no processor ever sees a client's URL.
        media: The media parts in the order of the chat.
    """

    messages: list[dict[str, Any]] = field(repr=False)
    media: list[MediaPart]


def field_name(name: object) -> str:
    """Return `name` of a client's field for a message, or a stand-in for what is no identifier."""
    return name if isinstance(name, str) and _FIELD_NAME.fullmatch(name) else "a field"


def chat_arguments(document: object) -> dict[str, Any]:
    """Return the arguments of `Renderer.render_chat` that the body of a chat completion holds.

    Fields that say how the engine samples and answers (``model``, ``temperature``, ``max_tokens``,
    ``stream``, …) are left out; so is what is null.

    Raises:
        RequestError: The document is no object with messages, or has a field that is not known.
    """
    if not isinstance(document, Mapping) or "messages" not in document:
        raise RequestError("the chat must be an object with messages")
    _refuse_unknown(document, _ARGUMENTS | _IGNORED, "the chat")
    return {
        name: value
        for name, value in document.items()
        if name == "messages" or (name in _ARGUMENTS and value is not None)
    }


def parse_chat(messages: object) -> ChatRequest:
    """Parse the messages of one chat.

    A message is a mapping with ``role`` and ``content``; content is text or a list of parts:
    text, ``image_url`` (an object with ``url``, or a bare string) and ``input_image``. A part may
    have a ``uuid``, and its URL may then be null; ``detail`` and ``cache_control`` change nothing.
    What else a message has is for the template: of ``tool_calls`` the JSON text of arguments
    becomes an object, and ``reasoning`` is ``reasoning_content`` too, which templates read.

    Raises:
        RequestError: The chat is malformed. The message says where, and echoes no value.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise RequestError("messages must be a list")
    if not messages:
        raise RequestError("messages are empty")
    chat = ChatRequest([], [])
    for number, message in enumerate(messages):
        chat.messages.append(_parse_message(message, f"messages[{number}]", chat.media))
    return chat


def _parse_message(message: object, where: str, media: list[MediaPart]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object")
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError(f"{where}.role must be a string")
    if not _ROLE.fullmatch(role):
        raise RequestError(f"{where}.role must be letters, digits, - and _, at most 64")
    parsed = {**message, "content": _parse_content(message.get("content"), where, media)}
    if message.get("tool_calls") is not None:
        parsed["tool_calls"] = _parse_tool_calls(message["tool_calls"], f"{where}.tool_calls")
    if message.get("reasoning") is not None:
        parsed.setdefault("reasoning_content", message["reasoning"])
    return parsed


def _parse_tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(f"{where} must be a list")
    return [_parse_tool_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _parse_tool_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise RequestError(f"{where} must be an object with a function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}.function.arguments is not JSON") from error
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{where}.function.arguments must be an object")
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_content(content: object, where: str, media: list[MediaPart]) -> object:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise RequestError(f"{where}.content must be a string or a list of parts")
    return [
        _parse_part(part, f"{where}.content[{number}]", media)
        for number, part in enumerate(content)
    ]


def _parse_part(part: object, where: str, media: list[MediaPart]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} must be an object")
    kind = part.get("type")
    if kind is None:
        # A part without a type is what its key says it is.
        kind = next((name for name in ("text", "image_url", *_OTHERS) if part.get(name)), None)
    if not isinstance(kind, str):
        raise RequestError(f"{where} has a type that is not served")
    if kind in _TEXTS:
        name = _TEXTS[kind]
        _refuse_unknown(part, {"type", name, *_HINTS}, where)
        if not isinstance(part.get(name), str):
            raise RequestError(f"{where}.{name} must be a string")
        return {"type": "text", "text": part[name]}
    if kind in _IMAGES:
        _add_image(part, where, media)
        return {"type": "image"}
    if kind in _OTHERS:
        raise RequestError(f"{where}: the model takes no {_OTHERS[kind]} input")
    raise RequestError(f"{where} has a type that is not served")


def _add_image(part: Mapping[str, Any], where: str, media: list[MediaPart]) -> None:
    _refuse_unknown(part, {"type", "image_url", "uuid", *_HINTS}, where)
    image_url = part.get("image_url")
    url = image_url
    if isinstance(image_url, Mapping):
        _refuse_unknown(image_url, {"url", "detail"}, f"{where}.image_url")
        url = image_url.get("url")
    uuid = part.get("uuid")
    if url is not None and not isinstance(url, str):
        raise RequestError(f"{where}.image_url must be a string or an object with a url")
    if uuid is not None:
        check_uuid(uuid, f"{where}.uuid")
    elif not url:
        raise RequestError(f"{where} has neither a url nor a uuid")
    # Images are the only modality here, so that an image's index is its place among all media.
    media.append(MediaPart("image", len(media), url or None, uuid))


def _refuse_unknown(
    fields: Mapping[str, Any], known: frozenset[str] | set[str], where: str
) -> None:
    for name, value in fields.items():
        if value is not None and name not in known:
            raise RequestError(f"{where} has a field that is not known: {field_name(name)}")
