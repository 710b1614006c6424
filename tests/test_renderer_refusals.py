"""Bad media, budgets and limits: one clear error with its place, siblings unharmed."""

from __future__ import annotations

import asyncio
import io
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from gated_model import Gate, Model, chat, picture, run, wait_until_pool_is_idle
from safelight import (
    MEDIA_CONNECTOR_REGISTRY,
    BlockedURLError,
    ConfigurationError,
    DecodeError,
    FetchError,
    HeaderError,
    LimitError,
    MediaError,
    MultiModalProcessorOnlyCache,
    PayloadTooLargeError,
    Renderer,
    RequestError,
    UnsupportedMediaError,
    media_pool,
)
from safelight.http_errors import error_body, http_status
from tiny_model import (
    data_url,
    image_part,
    png,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def pool_is_left_idle() -> Iterator[None]:
    yield
    wait_until_pool_is_idle()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def renderer(model: Model) -> Iterator[Renderer]:
    with Renderer(model.processor, cache=MultiModalProcessorOnlyCache(1 << 20)) as renderer:
        yield renderer


# --- failures ---


@pytest.mark.parametrize(
    ("url", "error", "status"),
    [
        ("data:image/png;base64", BlockedURLError, 400),
        ("data:image/png,s3cr3t", BlockedURLError, 400),
        ("s3cr3t.png", BlockedURLError, 400),
        ("ftp://s3cr3t/a.png", BlockedURLError, 400),
        ("file:///s3cr3t/a.png", BlockedURLError, 400),
        ("data:image/png;base64,s3cr3t!!", DecodeError, 422),
        ("data:image/png;base64,AAA", DecodeError, 422),
        ("data:image/png;base64,", MediaError, 422),
        (data_url(b"s3cr3t, no image"), HeaderError, 422),
        (data_url(png(Image.new("RGB", (8, 8)))[:30]), HeaderError, 422),
        (data_url(picture(1, (64, 64))[:-60]), DecodeError, 422),
    ],
)
def test_bad_media_is_one_clear_error_with_its_place_and_status(
    model: Model, renderer: Renderer, url: str, error: type[FetchError | MediaError], status: int
) -> None:
    good = chat(picture(1), picture(2), picture(3))
    messages = [
        *good,
        {"role": "user", "content": [image_part(url), image_part(data_url(picture(4)))]},
    ]
    with pytest.raises(error) as caught:
        renderer.render_chat(messages)
    assert str(caught.value).startswith("image 3: ")
    assert "\n" not in str(caught.value)
    assert (caught.value.modality, caught.value.index) == ("image", 3)
    assert isinstance(caught.value, ValueError)
    assert http_status(caught.value) == status
    body = error_body(caught.value)["error"]
    assert (body["modality"], body["index"], body["param"]) == ("image", 3, None)
    for text in (str(caught.value), str(body)):
        assert "s3cr3t" not in text
        assert " at 0x" not in text
    assert renderer.cache is not None
    assert renderer.cache.stats().entries == 0
    assert renderer.render_chat(good).inputs["mm_cache_hits"] == {"image": [False] * 3}


def test_kinds_of_bad_images_are_told_apart(renderer: Renderer) -> None:
    jpeg = io.BytesIO()
    Image.new("RGB", (64, 64)).save(jpeg, "JPEG")
    header = png(Image.new("RGB", (8, 8)))
    size = (20_000).to_bytes(4, "big") * 2
    ihdr = b"IHDR" + size + header[24:29]
    bomb = header[:12] + ihdr + zlib.crc32(ihdr).to_bytes(4, "big") + header[33:]
    kinds: dict[type[MediaError], bytes] = {
        LimitError: bomb,
        DecodeError: jpeg.getvalue()[:-20],
        UnsupportedMediaError: b"%!PS-Adobe-3.0 EPSF-3.0\n",
        HeaderError: b"\0" * 40,
    }
    for kind, payload in kinds.items():
        with pytest.raises(kind, match=r"^image 1: ") as caught:
            renderer.render_chat(chat(picture(1), payload))
        assert type(caught.value) is kind
        assert http_status(caught.value) == 422


def test_the_first_failure_in_the_order_of_the_chat_is_raised(
    model: Model, renderer: Renderer
) -> None:
    slow = picture(1)[:-30]
    model.fetching[slow] = lambda: time.sleep(0.05)
    messages = chat(picture(0))
    messages[0]["content"] += [image_part("data:,x"), image_part("ftp://x"), image_part("data:")]
    with pytest.raises(BlockedURLError, match=r"^image 1: data URL is not base64"):
        renderer.render_chat(messages)
    broken = [picture(n, (64, 64))[:-60] for n in (1, 2)]
    model.decoding[picture(9)] = lambda: time.sleep(0.05)
    with pytest.raises(DecodeError, match=r"^image 1: "):
        renderer.render_chat(chat(picture(9), *broken))


def test_an_oversize_image_is_refused_before_a_pixel_is_touched() -> None:
    model = Model(media_io_kwargs={"image": {"max_image_pixels": 100}})
    with Renderer(model.processor) as renderer:
        with pytest.raises(LimitError) as caught:
            renderer.render_chat(chat(picture(1, (8, 8)), picture(2, (16, 16))))
        assert str(caught.value) == (
            "image 1: image is 16x16 = 256 pixels, over max_image_pixels 100"
        )
        assert model.decoded == []
        renderer.render_chat(chat(picture(1, (8, 8))))


# --- budgets and limits ---


def test_what_a_request_may_decode_to_is_bounded_and_hits_are_free(model: Model) -> None:
    payloads = [picture(n, (16, 8)) for n in range(3)]
    nbytes = 16 * 8 * 4
    cache = MultiModalProcessorOnlyCache(1 << 20)
    with Renderer(model.processor, cache=cache, max_decoded_bytes=2 * nbytes) as renderer:
        renderer.render_chat(chat(*payloads[:2]))
        with pytest.raises(
            LimitError, match=r"image \d: the request's decoded bytes are 1536, over"
        ):
            renderer.render_chat(chat(*payloads))
        for _ in range(3):  # each request has its own
            renderer.render_chat(chat(*payloads[1:]))


def test_a_hit_gives_its_share_of_the_budget_back(model: Model) -> None:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    with Renderer(model.processor, cache=cache) as renderer:
        renderer.render_chat(chat(picture(1)))
        charges: list[Any] = []
        model.processor._validate_item = lambda items, _, index, __: charges.append(
            items["image"].get_raw(index)._charge
        )
        renderer.render_chat(chat(picture(1), picture(2), picture(2)))
    (budget,) = {charge._budget for charge in charges}
    assert budget.used_bytes == 16 * 8 * 4, "only what was decoded is held"


def test_a_failed_or_cancelled_request_holds_no_budget(model: Model, renderer: Renderer) -> None:
    held: list[Any] = []
    payload, gate = picture(1), Gate()
    model.processor._validate_item = lambda items, *_: held.append(
        items["image"].get_raw(0)._charge._budget
    )
    model.decoding[payload] = gate
    threads = media_pool().max_threads
    blocking = [picture(100 + n) for n in range(threads)]
    gates = [model.decoding.setdefault(other, Gate()) for other in blocking]

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(*blocking, payload)))
        for other in gates:
            await other.wait_entered()  # type: ignore[attr-defined]
        task.cancel()
        await asyncio.sleep(0.01)
        for other in gates:
            other.opened.set()  # type: ignore[attr-defined]
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert held[0].used_bytes == threads * 16 * 8 * 4, "what never ran is given back"


def test_what_a_request_may_bring_is_bounded(model: Model) -> None:
    payload = picture(1)
    with Renderer(model.processor, max_download_bytes=2 * len(payload) + 4) as renderer:
        renderer.render_chat(chat(payload, payload))
        with pytest.raises(PayloadTooLargeError, match=r"^image \d: the request's encoded bytes"):
            renderer.render_chat(chat(payload, payload, payload))
        renderer.render_chat(chat(payload, payload))


def test_too_many_items_are_refused_before_any_is_fetched() -> None:
    model = Model(limit_mm_per_prompt={"image": 2})
    with Renderer(model.processor) as renderer:
        with pytest.raises(RequestError, match="the prompt has 3 image items, over limit_mm_per"):
            renderer.render_chat(chat(*[picture(1)] * 3))
        assert model.fetched == []
        renderer.render_chat(chat(*[picture(1)] * 2))


# --- what the operator got wrong ---


@MEDIA_CONNECTOR_REGISTRY.register("test broken")
class Broken:
    def __init__(self, **_: Any) -> None:
        raise ValueError("s3cr3t")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"media_connector": "unknown"}, "media_connector"),
        ({"media_connector": "test broken"}, "media_connector"),
        ({"connector_options": {"max_bytes": -1}}, "connector_options"),
        ({"max_decoded_bytes": -1}, "max_decoded_bytes"),
        ({"max_download_bytes": -1}, "max_download_bytes"),
    ],
)
def test_what_the_operator_got_wrong_fails_when_the_renderer_is_made(
    model: Model, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        Renderer(model.processor, **options)
    assert "s3cr3t" not in str(caught.value)
    assert http_status(caught.value) == 500


@pytest.mark.parametrize(
    "media_io_kwargs",
    [{"image": {"unknown": 1}}, {"image": {"max_image_pixels": -1}}, {"smell": {}}],
)
def test_decode_options_of_the_server_fail_when_the_renderer_is_made(media_io_kwargs: Any) -> None:
    with pytest.raises(ConfigurationError, match="media_io_kwargs"):
        Renderer(Model(media_io_kwargs=media_io_kwargs).processor)


def test_a_connector_that_fails_later_is_no_clients_fault(model: Model) -> None:
    made: list[int] = []

    @MEDIA_CONNECTOR_REGISTRY.register("test failing later")
    class Failing:
        def __init__(self, **_: Any) -> None:
            made.append(1)
            if len(made) > 1:
                raise ValueError("s3cr3t")

    with (
        Renderer(model.processor, media_connector="test failing later") as renderer,
        pytest.raises(ConfigurationError) as caught,
    ):
        renderer.render_chat(chat(picture(1)))
    assert "s3cr3t" not in str(error_body(caught.value)) + str(caught.value)
