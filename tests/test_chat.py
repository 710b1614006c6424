"""Messages in OpenAI's shape to template input and media parts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from safelight import RequestError
from safelight.chat import MediaPart, parse_chat

URL = "data:image/png;base64,AAAA"


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("part", "url", "uuid"),
    [
        ({"type": "image_url", "image_url": {"url": URL}}, URL, None),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, URL, None),
        ({"type": "image_url", "image_url": URL}, URL, None),
        ({"image_url": {"url": URL}}, URL, None),
        ({"text": None, "image_url": URL}, URL, None),
        ({"type": "input_image", "image_url": URL}, URL, None),
        ({"type": "input_image", "image_url": {"url": URL}}, URL, None),
        ({"type": "image_url", "image_url": {"url": URL}, "uuid": "a"}, URL, "a"),
        ({"type": "image_url", "image_url": URL, "uuid": None}, URL, None),
        ({"type": "image_url", "image_url": None, "uuid": "a"}, None, "a"),
        ({"type": "image_url", "image_url": {"url": None}, "uuid": "a"}, None, "a"),
        ({"type": "image_url", "image_url": {}, "uuid": "a"}, None, "a"),
        ({"type": "image_url", "image_url": "", "uuid": "a"}, None, "a"),
        ({"type": "image_url", "uuid": "a"}, None, "a"),
    ],
)
def test_an_image_part_is_a_url_or_a_uuid(
    part: dict[str, Any], url: str | None, uuid: str | None
) -> None:
    chat = parse_chat(user(part))
    assert chat.media == [MediaPart("image", 0, url, uuid)]
    assert chat.messages == user({"type": "image"}), "a template never sees a URL"


@pytest.mark.parametrize(
    "part",
    [
        "hello",
        {"type": "text", "text": "hello"},
        {"type": "input_text", "text": "hello"},
        {"text": "hello"},
    ],
)
def test_a_text_part_is_its_text(part: Any) -> None:
    chat = parse_chat(user(part))
    assert chat.messages == user({"type": "text", "text": "hello"})
    assert chat.media == []


def test_indices_count_the_images_of_the_whole_chat_from_0() -> None:
    chat = parse_chat(
        [
            {"role": "user", "content": ["a", {"image_url": "u0"}, "b", {"image_url": "u1"}]},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": [{"type": "input_image", "image_url": "u2"}, "d"]},
        ]
    )
    assert [(part.index, part.url) for part in chat.media] == [(0, "u0"), (1, "u1"), (2, "u2")]
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "user"]


def test_what_else_a_message_has_is_for_the_template() -> None:
    message = {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "add"}
    assert parse_chat([message]).messages == [message]


@pytest.mark.parametrize("content", [None, "", []])
def test_a_message_may_be_empty(content: object) -> None:
    (message,) = parse_chat([{"role": "assistant", "content": content}]).messages
    assert message["content"] == ([] if content == [] else "")


def test_the_callers_messages_are_not_changed() -> None:
    messages = user({"type": "image_url", "image_url": {"url": URL}})
    before = json.dumps(messages)
    parse_chat(messages)
    assert json.dumps(messages) == before


def test_a_repr_shows_no_payload_and_no_message() -> None:
    chat = parse_chat([{"role": "user", "content": ["s3cr3t", {"image_url": "s3cr3t"}]}])
    assert "s3cr3t" not in repr(chat)
    assert repr(chat.media) == "[MediaPart(modality='image', index=0, uuid=None)]"


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (None, "messages must be a list"),
        ("hello", "messages must be a list"),
        (b"hello", "messages must be a list"),
        ({"role": "user"}, "messages must be a list"),
        ([], "messages are empty"),
        ([SECRET], "messages[0] must be an object"),
        ([None], "messages[0] must be an object"),
        ([{"content": SECRET}], "messages[0].role must be a string"),
        ([{"role": 1, "content": SECRET}], "messages[0].role must be a string"),
        (
            [{"role": "user", "content": 7}],
            "messages[0].content must be a string or a list of parts",
        ),
        (
            [{"role": "user", "content": {"type": "text", "text": SECRET}}],
            "messages[0].content must be a string or a list of parts",
        ),
        (user("a", None), "messages[0].content[1] must be an object"),
        (user([SECRET]), "messages[0].content[0] must be an object"),
        (user({"type": "text"}), "messages[0].content[0].text must be a string"),
        (user({"type": "text", "text": [SECRET]}), "messages[0].content[0].text must be a string"),
        (user({"type": SECRET}), "messages[0].content[0] has a type that is not served"),
        (user({"type": [SECRET]}), "messages[0].content[0] has a type that is not served"),
        (
            user({"type": "video_url", "video_url": URL}),
            "messages[0].content[0] has a type that is not served",
        ),
        (
            user({"type": "image_embeds", "image_embeds": SECRET}),
            "messages[0].content[0] has a type that is not served",
        ),
        (user({}), "messages[0].content[0] has a type that is not served"),
        (user({"type": "image_url"}), "messages[0].content[0] has neither a url nor a uuid"),
        (
            user({"type": "image_url", "image_url": None}),
            "messages[0].content[0] has neither a url nor a uuid",
        ),
        (
            user({"type": "image_url", "image_url": {"url": ""}}),
            "messages[0].content[0] has neither a url nor a uuid",
        ),
        (
            user({"type": "image_url", "image_url": {"url": [SECRET]}}),
            "messages[0].content[0].image_url must be a string or an object with a url",
        ),
        (
            user({"type": "image_url", "image_url": [SECRET]}),
            "messages[0].content[0].image_url must be a string or an object with a url",
        ),
        (
            user({"type": "image_url", "image_url": URL, "uuid": ""}),
            "messages[0].content[0].uuid must be a string that is not empty",
        ),
        (
            user({"type": "image_url", "image_url": URL, "uuid": 7}),
            "messages[0].content[0].uuid must be a string that is not empty",
        ),
        (
            user({"type": "image_url", "image_url": URL, "uuid": "a\ud800"}),
            "messages[0].content[0].uuid is not valid text",
        ),
    ],
)
def test_what_is_malformed_is_said_with_its_place_and_without_an_echo(
    messages: object, text: str
) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(messages)
    assert str(caught.value) == text
    assert SECRET not in str(caught.value)


@pytest.mark.timeout(60)  # counting from the start for each part would take minutes
def test_very_many_parts_are_counted_once() -> None:
    media = parse_chat(user(*[{"type": "image_url", "image_url": URL}] * 100_000)).media
    assert [part.index for part in media] == list(range(100_000))
