"""A model's chat template: which options and which form of content it reads, and the prompt.

Owns what is told from a template's text without running it. Must never run a template that a
request brings, nor hand one an option that decides more than text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from safelight.chat import field_name
from safelight.errors import ConfigurationError, RequestError
from safelight.processing import ProcessingInfo

__all__ = ["ChatTemplate", "ContentFormat"]

ContentFormat = Literal["auto", "string", "openai"]

# A template that does not read these would answer another question than the one that was asked.
_MUST_BE_READ = ("tools", "documents")
# The engine reads these as well, so that a template need not.
_MAY_BE_READ = ("tool_choice", "reasoning_effort")
_FLAGS = ("add_generation_prompt", "continue_final_message")
_OPTIONS = frozenset((*_MUST_BE_READ, *_MAY_BE_READ, *_FLAGS, "chat_template_kwargs"))

# Extension of transformers: marks text of the assistant, and renders as its content.
_GENERATION_TAG = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


class ChatTemplate:
    """The chat template of a model.

    Args:
        info: The model's processor and what stands for an item in a prompt.
        content_format: Form of a message's content: ``"string"``; ``"openai"``, a list of parts;
            or ``"auto"``, the one that the template reads.

    Raises:
        ConfigurationError: `content_format` is none of these.
    """

    def __init__(self, info: ProcessingInfo, content_format: ContentFormat = "auto") -> None:
        if content_format not in get_args(ContentFormat):
            names = ", ".join(get_args(ContentFormat))
            raise ConfigurationError(f"chat_template_content_format must be one of {names}")
        self._info = info
        self._content_format = content_format

    def check_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords for the template of a request's `options`.

        Options are ``tools`` and ``documents``, lists of objects; ``tool_choice`` and
        ``reasoning_effort``, which are passed if the template reads them;
        ``add_generation_prompt`` and ``continue_final_message``, booleans; and
        ``chat_template_kwargs``, an object of variables of the template. None is absent.

        Raises:
            RequestError: An option is unknown or malformed, or the template does not read it.
        """
        options = {name: value for name, value in options.items() if value is not None}
        for name in options:
            if name not in _OPTIONS:
                raise RequestError(f"{field_name(name)} is not an option of a chat")
        variables = options.pop("chat_template_kwargs", {})
        if not isinstance(variables, Mapping):
            raise RequestError("chat_template_kwargs must be an object")
        # Some clients write these two there.
        kwargs = _check_flags({**{name: variables.get(name) for name in _FLAGS}, **options})
        variables = {name: value for name, value in variables.items() if name not in _FLAGS}
        kwargs.update(_check_lists(options))
        reading = self._reading(kwargs)
        for name in _MUST_BE_READ:
            if name in kwargs and not reading.reads(name):
                raise RequestError(f"the model's chat template reads no {name}")
        for name in variables:
            if name in _RESERVED or name in _OPTIONS or not reading.reads(name):
                raise RequestError(
                    f"chat_template_kwargs: {field_name(name)} is not read by the model's chat "
                    "template"
                )
        passed = [name for name in _MAY_BE_READ if name in options.keys() & reading.variables]
        return {**kwargs, **{name: options[name] for name in passed}, **variables}

    def render(self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]) -> str:
        """Return the prompt of parsed `messages` with the keywords of `check_options`.

        Raises:
            RequestError: The template refuses the messages, or takes text alone and the model has
                no text that stands for an item.
        """
        content_format: str | None = self._content_format
        if content_format == "auto":
            content_format = self._reading(kwargs).content_format
        if content_format == "string":
            messages = [self._with_text(message) for message in messages]
        elif content_format == "openai":
            messages = [_with_parts(message) for message in messages]
        try:
            prompt: str = self._info.hf_processor.apply_chat_template(
                messages, tokenize=False, **kwargs
            )
        except Exception as error:
            raise RequestError("the model's chat template refuses the messages") from error
        return prompt

    def _reading(self, kwargs: Mapping[str, Any]) -> _Reading:
        """What the template reads; nothing is known where there is no text of one."""
        hf_processor = self._info.hf_processor
        template = getattr(hf_processor, "chat_template", None) or getattr(
            getattr(hf_processor, "tokenizer", None), "chat_template", None
        )
        if isinstance(template, Mapping):
            # transformers' choice among several.
            name = "tool_use" if "tools" in kwargs and "tool_use" in template else "default"
            template = template.get(name)
        return _read(template) if isinstance(template, str) else _Reading()

    def _with_text(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return `message` with its parts as one text: what stands for its items goes first."""
        parts = message.get("content")
        if not isinstance(parts, list):
            return dict(message)
        placeholders = []
        for part in parts:
            if part["type"] != "text":
                placeholder = self._info.get_placeholder_str(part["type"])
                if placeholder is None:
                    raise RequestError(
                        f"the model's chat template takes text alone, and no text stands for "
                        f"{part['type']} input"
                    )
                placeholders.append(placeholder)
        texts = [part["text"] for part in parts if part["type"] == "text"]
        return {**message, "content": "\n".join([*placeholders, *texts])}


# What transformers passes itself, or would take for an option of its own.
_RESERVED = frozenset(
    "messages conversation chat_template tokenize return_dict return_tensors padding truncation "
    "max_length return_assistant_tokens_mask tokenizer_kwargs processor_kwargs images videos audio "
    "text raise_exception strftime_now bos_token eos_token pad_token unk_token".split()
)


def _check_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    flags = {name: options[name] for name in _FLAGS if options.get(name) is not None}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RequestError(f"{name} must be true or false")
    continues = flags.get("continue_final_message", False)
    if continues and flags.get("add_generation_prompt", False):
        raise RequestError("add_generation_prompt and continue_final_message exclude each other")
    starts = flags.get("add_generation_prompt", not continues)
    return {
        "add_generation_prompt": starts,
        **({"continue_final_message": True} if continues else {}),
    }


def _check_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    lists = {name: options[name] for name in _MUST_BE_READ if name in options}
    for name, value in lists.items():
        if not (isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)):
            raise RequestError(f"{name} must be a list of objects")
    return {name: value for name, value in lists.items() if value}


def _with_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return dict(message)
    return {**message, "content": [{"type": "text", "text": content}] if content else []}


@dataclass(frozen=True)
class _Reading:
    """What a template reads. `content_format` None leaves content as the request has it."""

    variables: frozenset[str] = frozenset()
    content_format: str | None = None

    def reads(self, name: str) -> bool:
        return self.content_format is None or name in self.variables


@lru_cache(maxsize=16)
def _read(template: str) -> _Reading:
    from jinja2 import Environment, TemplateError, meta

    # Parsed, never run: the environment that runs it is transformers' sandbox.
    environment = Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"])  # noqa: S701
    try:
        tree = environment.parse(_GENERATION_TAG.sub("", template))
    except TemplateError:
        return _Reading()
    content_format = "openai" if _iterates_content(tree) else "string"
    return _Reading(frozenset(meta.find_undeclared_variables(tree)), content_format)


def _iterates_content(tree: Any) -> bool:
    """Whether a loop of the template goes over the content of a message."""
    from jinja2 import nodes

    kinds = _Kinds(tree)
    return any(kinds.of(loop.iter) == "content" for loop in tree.find_all(nodes.For))


class _Kinds:
    """Which names of a template stand for the messages, one message, or its content.

    Follows ``messages`` through loops, assignments and arguments of macros until nothing new is
    found. Scopes are ignored: a name means the same everywhere in the templates that there are.
    """

    def __init__(self, tree: Any) -> None:
        from jinja2 import nodes

        self._names: dict[str, str] = {"messages": "messages"}
        self._tree = tree
        self._macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        known = 0
        while known < len(self._names):
            known = len(self._names)
            for target, kind in self._bindings():
                if kind is not None and isinstance(target, nodes.Name):
                    self._names.setdefault(target.name, kind)

    def _bindings(self) -> Iterator[tuple[Any, str | None]]:
        from jinja2 import nodes

        for assign in self._tree.find_all(nodes.Assign):
            yield assign.target, self.of(assign.node)
        for loop in self._tree.find_all(nodes.For):
            yield loop.target, "message" if self.of(loop.iter) == "messages" else None
        for call in self._tree.find_all(nodes.Call):
            macro = self._macros.get(getattr(call.node, "name", ""))
            if macro is not None:
                yield from zip(macro.args, map(self.of, call.args), strict=False)

    def of(self, node: Any) -> str | None:
        """What an expression stands for."""
        from jinja2 import nodes

        match node:
            case nodes.Name():
                return self._names.get(node.name)
            case nodes.Filter():
                return self.of(node.node)
            case nodes.CondExpr():
                return self.of(node.expr1) or self.of(node.expr2)
            case nodes.Add() | nodes.Or():
                return self.of(node.left) or self.of(node.right)
            case nodes.Getattr():
                return self._member(node.node, node.attr)
            case nodes.Getitem():
                if isinstance(node.arg, nodes.Slice):
                    return self.of(node.node)
                return self._member(node.node, getattr(node.arg, "value", None))
        return None

    def _member(self, node: Any, name: object) -> str | None:
        kind = self.of(node)
        if kind == "messages":
            return "message"
        return "content" if kind == "message" and name == "content" else None
