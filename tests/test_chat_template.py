"""Chat templates: the options and the form of content that they read; prompts."""

from __future__ import annotations

from typing import Any

import pytest

from safelight import ConfigurationError, RequestError
from safelight.chat import parse_chat
from safelight.chat_template import ChatTemplate

jinja2 = pytest.importorskip("jinja2", reason="needs the hf extra")

STRING = "{% for m in messages %}[{{ m.role }}:{{ m['content'] }}]{% endfor %}"
PART = "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
OPENAI = (
    "{% for m in messages %}[{{ m.role }}:{% for part in m.content %}"
    + PART
    + "{% endfor %}]{% endfor %}"
)
SLICED = (
    "{% set loop_messages = messages[0:] %}{% for m in loop_messages %}[{{ m.role }}:"
    "{% set content = m['content'] | list %}{% for part in content %}"
    + PART
    + "{% endfor %}]{% endfor %}"
)
MACRO = (
    "{% macro show(content) %}{% for part in content %}"
    + PART
    + "{% endfor %}{% endmacro %}{% for i in range(messages | length) %}{% set m = messages[i] %}"
    "[{{ m.role }}:{{ show(m.content) }}]{% endfor %}"
)
GENERATION = OPENAI.replace("[", "{% generation %}[", 1) + "{%- endgeneration -%}"
TOOLS = STRING + "{{ tools | length }} tools, {{ enable_thinking }}"


class Model:
    """A model that has a template, an image token, and nothing else."""

    def __init__(self, template: Any = STRING, image_token: str | None = "<image>") -> None:
        self.chat_template = template
        self.image_token = image_token
        self.hf_processor = self

    def get_placeholder_str(self, modality: str) -> str | None:
        return getattr(self, f"{modality}_token")

    def apply_chat_template(self, messages: Any, *, tokenize: bool, **kwargs: Any) -> str:
        assert not tokenize
        template = self.chat_template
        if isinstance(template, dict):
            template = template["tool_use" if kwargs.get("tools") else "default"]
        for tag in ("{% generation %}", "{%- endgeneration -%}"):
            template = template.replace(tag, "")
        return jinja2.Template(template).render(messages=messages, **kwargs)


def render(template: Any, messages: Any, content_format: Any = "auto", **options: Any) -> str:
    chat_template = ChatTemplate(Model(template), content_format)  # type: ignore[arg-type]
    kwargs = chat_template.check_options(options)
    return chat_template.render(parse_chat(messages).messages, kwargs)


IMAGE = {"type": "image_url", "image_url": "data:,"}
CHAT = [
    {"role": "system", "content": "abc"},
    {"role": "user", "content": ["d", IMAGE, {"type": "text", "text": "e"}]},
    {"role": "assistant", "content": None},
]


@pytest.mark.parametrize("template", [OPENAI, SLICED, MACRO, GENERATION])
def test_a_template_that_goes_over_parts_gets_parts(template: str) -> None:
    assert render(template, CHAT) == "[system:abc][user:d<image>e][assistant:]"


def test_a_template_that_prints_content_gets_text_with_what_stands_for_images() -> None:
    assert render(STRING, CHAT) == "[system:abc][user:<image>\nd\ne][assistant:]"


def test_the_form_can_be_forced() -> None:
    assert render(OPENAI, [{"role": "user", "content": ["ab"]}], "string") == "[user:]"
    assert "'type': 'text'" in render(STRING, [{"role": "user", "content": "ab"}], "openai")
    with pytest.raises(ConfigurationError, match="chat_template_content_format must be one of"):
        render(STRING, CHAT, "list")


def test_media_that_no_text_stands_for() -> None:
    template = ChatTemplate(Model(STRING, image_token=None))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="no text stands for image input"):
        template.render(parse_chat(CHAT).messages, {})


TOOL = {"type": "function", "function": {"name": "f"}}


def test_tools_and_variables_reach_the_template() -> None:
    prompt = render(
        TOOLS,
        [{"role": "user", "content": "a"}],
        tools=[TOOL, TOOL],
        tool_choice="auto",
        chat_template_kwargs={"enable_thinking": 7},
    )
    assert prompt == "[user:a]2 tools, 7"


def test_a_template_for_tools_is_taken_where_there_are_several() -> None:
    templates = {"default": STRING, "tool_use": TOOLS}
    messages = [{"role": "user", "content": "a"}]
    assert render(templates, messages) == "[user:a]"
    assert render(templates, messages, tools=[TOOL]) == "[user:a]1 tools, "


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"add_generation_prompt": True}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        (
            {"continue_final_message": True},
            {"add_generation_prompt": False, "continue_final_message": True},
        ),
        (
            {"chat_template_kwargs": {"add_generation_prompt": False}},
            {"add_generation_prompt": False},
        ),
        ({"tools": [], "documents": None}, {"add_generation_prompt": True}),
        ({"tool_choice": "none"}, {"add_generation_prompt": True}),
    ],
)
def test_what_a_template_is_called_with(options: Any, expected: Any) -> None:
    assert ChatTemplate(Model()).check_options(options) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tools": [TOOL]}, "the model's chat template reads no tools"),
        ({"documents": [{"s3cr3t": 1}]}, "the model's chat template reads no documents"),
        ({"tools": "s3cr3t"}, "tools must be a list of objects"),
        ({"tools": ["s3cr3t"]}, "tools must be a list of objects"),
        ({"tolls": []}, "tolls is not an option of a chat"),
        ({"chat_template": "s3cr3t"}, "chat_template is not an option of a chat"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs must be an object"),
        ({"add_generation_prompt": "s3cr3t"}, "add_generation_prompt must be true or false"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "add_generation_prompt and continue_final_message exclude each other",
        ),
        *(
            (
                {"chat_template_kwargs": {name: "s3cr3t"}},
                f"chat_template_kwargs: {name} is not read by the model's chat template",
            )
            for name in ("thinking", "messages", "tokenize", "chat_template", "tools")
        ),
    ],
)
def test_an_option_that_is_not_used_is_refused_by_name(options: Any, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(Model()).check_options(options)  # type: ignore[arg-type]
    assert str(caught.value) == text


def test_nothing_is_refused_of_a_template_that_has_no_text() -> None:
    template = ChatTemplate(Model(None))  # type: ignore[arg-type]
    options = {"tools": [TOOL], "chat_template_kwargs": {"a": 1}}
    assert template.check_options(options).keys() == {"add_generation_prompt", "tools", "a"}
    with pytest.raises(RequestError, match="tokenize is not read"):
        template.check_options({"chat_template_kwargs": {"tokenize": True}})
