"""Chat requests in the shape of OpenAI's API: messages to template input and media parts.

Owns what a content part may look like. Must never fetch or open anything: a part's URL is carried,
not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from safelight.errors import RequestError
from safelight.inputs import is_text

__all__ = ["ChatRequest", "MediaPart", "parse_chat"]


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


def parse_chat(messages: object) -> ChatRequest:
    """Parse the messages of one chat.

    A message is a mapping with ``role`` and ``content``; content is text or a list of parts:
    text, ``image_url`` (an object with ``url``, or a bare string) and ``input_image``. A part may
    have a ``uuid``, and its URL may then be null.

    Raises:
        RequestError: The chat is malformed. The message says where, and echoes nothing.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise RequestError("messages must be a list")
    if not messages:
        raise RequestError("messages are empty")
    chat = ChatRequest([], [])
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} must be an object")
        if not isinstance(message.get("role"), str):
            raise RequestError(f"{where}.role must be a string")
        chat.messages.append(
            {**message, "content": _parse_content(message.get("content"), where, chat.media)}
        )
    return chat


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
        kind = next((name for name in ("text", "image_url") if part.get(name)), None)
    if kind in ("text", "input_text"):
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{where}.text must be a string")
        return {"type": "text", "text": part["text"]}
    if kind in ("image_url", "input_image"):
        _add_image(part, where, media)
        return {"type": "image"}
    raise RequestError(f"{where} has a type that is not served")


def _add_image(part: Mapping[str, Any], where: str, media: list[MediaPart]) -> None:
    image_url = part.get("image_url")
    url = image_url.get("url") if isinstance(image_url, Mapping) else image_url
    uuid = part.get("uuid")
    if url is not None and not isinstance(url, str):
        raise RequestError(f"{where}.image_url must be a string or an object with a url")
    if uuid is not None and not (isinstance(uuid, str) and uuid):
        raise RequestError(f"{where}.uuid must be a string that is not empty")
    if uuid is not None and not is_text(uuid):
        raise RequestError(f"{where}.uuid is not valid text")
    if not url and uuid is None:
        raise RequestError(f"{where} has neither a url nor a uuid")
    # Images are the only modality here, so that an image's index is its place among all media.
    media.append(MediaPart("image", len(media), url or None, uuid))
