"""A client's UUID is a name, never content; and what the operator makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from safelight import (
    ConfigurationError,
    MultiModalHasher,
    MultiModalProcessorOnlyCache,
    Renderer,
    RequestError,
)
from safelight.http_errors import http_status
from tiny_model import Picture, data_url, image_part, make_inputs, make_processor, png, same

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cache() -> MultiModalProcessorOnlyCache:
    return MultiModalProcessorOnlyCache(1 << 20)


def apply(processor: Any, item: Any, uuid: str | None = None, **options: Any) -> Any:
    uuids = None if uuid is None else [uuid]
    return processor.apply(make_inputs(processor, [item], uuids=uuids, **options))


@pytest.mark.parametrize("algorithm", ["blake3", "sha512"])
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_a_hash_of_content_as_a_uuid_is_another_item(
    cache: MultiModalProcessorOnlyCache, algorithm: str, case: Any
) -> None:
    processor = make_processor(mm_hasher_algorithm=algorithm)
    right = apply(processor, Picture("a").ref())
    (of_a,) = right["mm_hashes"]["image"]
    assert len(of_a) in (64, 128)
    forged = apply(processor, Picture("b").ref(), case(of_a), cache=cache)
    assert forged["mm_hashes"]["image"][0].lower() != of_a
    served = apply(processor, Picture("a").ref(), cache=cache)
    assert served["mm_cache_hits"] == {"image": [False]}
    assert same(served, right)
    again = apply(processor, None, case(of_a), cache=cache)
    assert same(again, forged), "it is a name all the same"


def test_names_and_contents_live_apart_whatever_is_emitted(
    cache: MultiModalProcessorOnlyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash that is short enough to be taken verbatim stands for a collision of any kind."""
    monkeypatch.setattr(MultiModalHasher, "hash_kwargs", lambda *_, **__: "short")
    processor = make_processor()
    apply(processor, Picture("b").ref(), "short", cache=cache)
    served = apply(processor, Picture("a").ref(), cache=cache)
    assert served["mm_hashes"] == {"image": ["short"]}
    assert served["mm_cache_hits"] == {"image": [False]}


@pytest.mark.parametrize("uuid", ["u", "f" * 63, "f" * 65, "g" * 64, "f" * 127, "x" * 256])
def test_other_uuids_are_emitted_verbatim(uuid: str) -> None:
    assert apply(make_processor(), Picture("a").ref(), uuid)["mm_hashes"] == {"image": [uuid]}


def test_with_options_no_uuid_stands_for_the_key_of_a_ref() -> None:
    processor = make_processor()
    options: Any = {"hf_processor_mm_kwargs": {"scale": 0.5}}
    ref = Picture("a").ref()
    ref._key = b"k" * 32  # as good as any that is text
    content, name = apply(processor, ref, **options), apply(processor, ref, "k" * 32, **options)
    assert content["mm_hashes"] != name["mm_hashes"]


@pytest.mark.parametrize("uuid", ["", "x" * 257])
def test_a_uuid_has_1_to_256_characters(uuid: str) -> None:
    processor = make_processor()
    messages = [{"role": "user", "content": [image_part("ftp://not/fetched", uuid=uuid)]}]
    with pytest.raises(RequestError, match="uuid") as caught:
        apply(processor, Picture("a").ref(), uuid)
    assert http_status(caught.value) == 400
    assert "xxx" not in str(caught.value)
    with Renderer(processor) as renderer, pytest.raises(RequestError, match="uuid"):
        renderer.render_chat(messages)


# --- what the operator makes of it ---


def test_salted_uuids_are_a_tenants_own(cache: MultiModalProcessorOnlyCache) -> None:
    one, other = (
        make_processor(mm_uuid_policy="salted", mm_uuid_salt=salt) for salt in ("one", "other")
    )
    results = [
        apply(p, Picture(name).ref(), "u", cache=cache) for p, name in ((one, "a"), (other, "b"))
    ]
    assert [x["mm_cache_hits"]["image"] for x in results] == [[False], [False]]
    hashes = {x["mm_hashes"]["image"][0] for x in results}
    assert len(hashes) == 2
    assert "u" not in hashes
    assert same(apply(one, None, "u", cache=cache), results[0])
    assert same(apply(other, None, "u", cache=cache), results[1])


def test_ignored_uuids_name_nothing(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor(mm_uuid_policy="ignored")
    first = apply(processor, Picture("a").ref(), "u", cache=cache)
    assert first["mm_hashes"] == apply(processor, Picture("a").ref())["mm_hashes"]
    second = apply(processor, Picture("b").ref(), "u", cache=cache)
    assert second["mm_cache_hits"] == {"image": [False]}
    with pytest.raises(RequestError, match="no media"):
        apply(processor, None, "u", cache=cache)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"mm_uuid_policy": "none"}, "mm_uuid_policy"),
        ({"mm_uuid_policy": "salted"}, "mm_uuid_salt"),
        ({"mm_uuid_salt": "s"}, "mm_uuid_salt"),
        ({"mm_hasher_algorithm": "md5"}, "mm_hasher_algorithm"),
    ],
)
def test_options_that_are_no_options_fail_when_the_processor_is_made(
    options: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        make_processor(**options)
    assert http_status(caught.value) == 500


# --- a name whose entry is cached saves the work ---


def test_what_is_cached_under_a_uuid_is_not_fetched(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    url = data_url(png(Picture("a").image()))
    messages = [{"role": "user", "content": ["x", image_part(url, uuid="u")]}]
    with Renderer(processor, cache=cache) as renderer:
        first = renderer.render_chat(messages)
        for unusable in ("data:image/png;base64,!!!", "http://nowhere.invalid/a.png", None):
            part = image_part(unusable, uuid="u")
            served = renderer.render_chat([{"role": "user", "content": ["x", part]}])
            assert served.inputs["mm_cache_hits"] == {"image": [True]}
            assert same(served.inputs, first.inputs)
            assert served.items[0].key is None
        # What was found is held whatever the cache does in the meantime.
        processor._validate_item = lambda *_: cache.clear_cache()
        part = image_part("data:image/png;base64,!!!", uuid="u")
        held = renderer.render_chat([{"role": "user", "content": ["x", part]}])
        assert same(held.inputs, first.inputs)
        with pytest.raises(RequestError, match="image 0 has a uuid but no media"):
            renderer.render_chat([{"role": "user", "content": ["x", image_part(None, uuid="u")]}])


def test_a_request_past_the_cache_or_of_ignored_uuids_is_fetched(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    url = data_url(png(Picture("a").image()))
    messages = [{"role": "user", "content": ["x", image_part(url, uuid="u")]}]
    with Renderer(make_processor(), cache=cache) as renderer:
        renderer.render_chat(messages)
        assert renderer.render_chat(messages, skip_mm_cache=True).items[0].key is not None
    with Renderer(make_processor(mm_uuid_policy="ignored"), cache=cache) as renderer:
        assert renderer.render_chat(messages).items[0].key is not None
        again = renderer.render_chat(messages)
    assert again.inputs["mm_cache_hits"] == {"image": [True]}
    assert again.items[0].key is not None
