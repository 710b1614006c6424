"""The disk cache: whole entries or none, within its size, and no way around a rule."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from loopback import Resolver, Server
from safelight import (
    BlockedURLError,
    ConfigurationError,
    DecodedBudget,
    DecodeError,
    DownloadBudget,
    FetchRefusedError,
    HeaderError,
    MediaConnector,
    PayloadTooLargeError,
)
from safelight.connector.disk_cache import DiskCache
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)

PAYLOAD = bytes(range(256)) * 4


class Bytes(MediaIO[bytes]):
    def load_bytes(self, data: bytes) -> bytes:
        return data


@pytest.fixture
def options(tmp_path):
    return {
        "allow_private_addresses": True,
        "timeout_s": 20,
        "retry_backoff_s": 0.001,
        "cache_dir": tmp_path / "cache",
    }


@pytest.fixture(params=["sync", "async"])
def load(request):
    def load(url, media_io=None, **options):
        connector = MediaConnector(**options)
        media_io = media_io or Bytes()
        if request.param == "sync":
            return connector.load_from_url(url, media_io).data
        return asyncio.run(connector.load_from_url_async(url, media_io)).data

    return load


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


# --- through the connector ---


def test_a_payload_is_fetched_once(load, options):
    with Server(lambda exchange: exchange.answer(PAYLOAD)) as server:
        for _ in range(3):
            assert load(server.url + "a#b", **options) == PAYLOAD
        assert load(server.url + "b", **options) == PAYLOAD
        assert [exchange.path for exchange in server.exchanges] == ["/a", "/b"]


def test_it_is_off_unless_asked_for(load, options):
    del options["cache_dir"]
    with Server(lambda exchange: exchange.answer(PAYLOAD)) as server:
        for _ in range(2):
            load(server.url, **options)
        assert len(server.exchanges) == 2


def test_a_stale_payload_with_an_etag_is_revalidated(load, options):
    body = PAYLOAD

    def answer(exchange):
        if exchange.headers.get("if-none-match") == '"one"' and body is PAYLOAD:
            exchange.answer(status="304 Not Modified")
        else:
            exchange.answer(body, headers={"ETag": '"one"' if body is PAYLOAD else '"two"'})

    options["cache_ttl_s"] = 0
    with Server(answer) as server:
        for _ in range(3):
            assert load(server.url, **options) == PAYLOAD
        sent = [exchange.headers.get("if-none-match") for exchange in server.exchanges]
        assert sent == [None, '"one"', '"one"']
        body = b"changed"
        assert load(server.url, **options) == b"changed"
        # What was vouched for counts as new.
        body = PAYLOAD
        assert load(server.url, **options) == PAYLOAD
        load(server.url, **options)
        fresh = {**options, "cache_ttl_s": 1000}
        count = len(server.exchanges)
        assert load(server.url, **fresh) == PAYLOAD
        assert len(server.exchanges) == count


def test_a_stale_payload_without_an_etag_is_fetched_again(load, options):
    options["cache_ttl_s"] = 0
    with Server(lambda exchange: exchange.answer(PAYLOAD)) as server:
        for _ in range(2):
            load(server.url, **options)
        assert len(server.exchanges) == 2
        assert "if-none-match" not in server.exchanges[1].headers


def test_an_unasked_not_modified_is_no_payload(load, options):
    with (
        Server(lambda exchange: exchange.answer(status="304 Not Modified")) as server,
        pytest.raises(FetchRefusedError),
    ):
        load(server.url, **options)


def test_another_server_s_tag_says_nothing(load, options):
    """A redirect that leads elsewhere is not asked about, nor believed for, the stored payload."""
    options["cache_ttl_s"] = 0
    with (
        Server(lambda exchange: exchange.answer(b"first", headers={"ETag": '"x"'})) as first,
        Server(lambda exchange: exchange.answer(b"second", headers={"ETag": '"x"'})) as second,
    ):
        network = Resolver({"one.example": ["127.0.0.1"], "two.example": ["127.0.0.1"]})
        target = f"http://one.example:{first.port}/"
        with Server(lambda exchange: exchange.redirect(target)) as server:
            assert load(server.url, network=network, **options) == b"first"
            target = f"http://two.example:{second.port}/"
            assert load(server.url, network=network, **options) == b"second"
        assert "if-none-match" not in second.exchanges[0].headers


def test_what_must_not_be_stored_is_not(load, options):
    def answer(exchange):
        exchange.answer(PAYLOAD, headers={"Cache-Control": "private, no-store"})

    with Server(answer) as server:
        for _ in range(2):
            load(server.url, **options)
        assert len(server.exchanges) == 2


def test_failures_and_refused_payloads_are_not_stored(load, options):
    class Refuses(Bytes):
        def load_bytes_ref(self, data):
            raise HeaderError("no")

    def answer(exchange):
        exchange.answer(PAYLOAD, "200 OK" if exchange.path == "/ok" else "404 No")

    with Server(answer) as server:
        for _ in range(2):
            with pytest.raises(HeaderError):
                load(server.url + "ok", Refuses(), **options)
            with pytest.raises(FetchRefusedError):
                load(server.url + "missing", **options)
        assert len(server.exchanges) == 4
    assert files(options["cache_dir"]) == []


def jpeg() -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((200, 200), 64).convert("RGB").save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize("is_framed", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_does_not_turn_out_to_be_media_is_asked_for_anew(options, is_framed, is_async):
    """The server knows no better at first: its own file is cut short."""
    payload = jpeg()
    answers = iter([payload[: len(payload) // 2], payload])

    def answer(exchange):
        body = next(answers)
        length = b"Content-Length: %d\r\n" % len(body) if is_framed else b""
        exchange.send(b"HTTP/1.0 200 OK\r\n" + length + b"\r\n" + body)

    def fetch(url):
        connector = MediaConnector(**options)
        if is_async:
            return asyncio.run(connector.fetch_image_async(url))
        return connector.fetch_image(url)

    with Server(answer) as server:
        with pytest.raises(DecodeError):
            fetch(server.url).decode()
        assert files(options["cache_dir"]) == []
        assert fetch(server.url).decode().size == (200, 200)
        assert fetch(server.url).decode().size == (200, 200)
        assert len(server.exchanges) == 2


def test_what_may_be_cut_short_is_not_stored_before_it_is_decoded(load, options):
    with Server(lambda exchange: exchange.send(b"HTTP/1.0 200 OK\r\n\r\nx")) as server:
        for _ in range(2):
            load(server.url, **options)
        assert len(server.exchanges) == 2
    assert files(options["cache_dir"]) == []


def test_a_ref_of_a_stored_payload_is_released_refunded_and_mapped_as_any(options):
    budget = DecodedBudget(1 << 20)
    with Server(lambda exchange: exchange.answer(jpeg())) as server:
        connector = MediaConnector(decoded_budget=budget, **options)
        ref = connector.fetch_image(server.url)
        assert ref.header.upright_size == (200, 200)
        assert budget.used_bytes == 160_000
        small = ref.map(lambda image: image.size)
        ref.refund()
        assert budget.used_bytes == 0
        ref.release()
        assert small.decode() == (200, 200)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"Cache-Control": "no-store", "ETag": '"t"'}, 3),
        ({"Vary": "Accept, *", "ETag": '"t"'}, 3),
        ({"Cache-Control": "no-cache"}, 3),
        ({"Cache-Control": "public, max-age=0"}, 3),
        ({"Cache-Control": "Max-Age=x"}, 3),
        ({"Cache-Control": "max-age=100"}, 1),
        ({"Cache-Control": "max-age=100", "Vary": "Accept"}, 1),
        ({}, 1),
    ],
)
def test_a_server_says_how_long_its_answer_is_good(load, options, fields, asked):
    with Server(lambda exchange: exchange.answer(PAYLOAD, headers=fields)) as server:
        for _ in range(3):
            assert load(server.url, **options) == PAYLOAD
        assert len(server.exchanges) == asked
        assert not any("if-none-match" in exchange.headers for exchange in server.exchanges)


@pytest.mark.parametrize("control", ["no-cache", "max-age=0", "private,  NO-CACHE"])
def test_what_is_good_only_if_asked_for_is_asked_for(load, options, control):
    def answer(exchange):
        is_known = exchange.headers.get("if-none-match") == '"t"'
        status = "304 Not Modified" if is_known else "200 OK"
        headers = {"ETag": '"t"', "Cache-Control": control}
        exchange.answer(b"" if is_known else PAYLOAD, status, headers)

    with Server(answer) as server:
        for _ in range(3):
            assert load(server.url, **options) == PAYLOAD
        sent = [exchange.headers.get("if-none-match") for exchange in server.exchanges]
    assert sent == [None, '"t"', '"t"']


def test_a_stored_payload_passes_every_rule_that_a_download_does(load, options):
    network = Resolver({"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]})
    with Server(lambda exchange: exchange.answer(PAYLOAD)) as target:
        location = f"http://b.example:{target.port}/"
        with Server(lambda exchange: exchange.redirect(location)) as server:
            url = f"http://a.example:{server.port}/"
            options["network"] = network
            assert load(url, **options) == PAYLOAD
            assert load(url, **options) == PAYLOAD
            assert len(target.exchanges) == 1
            with pytest.raises(BlockedURLError, match="allowed_media_domains"):
                load(url, allowed_media_domains=["c.example"], **options)
            with pytest.raises(BlockedURLError, match="allowed_media_domains"):
                load(url, allowed_media_domains=["a.example"], **options)
            with pytest.raises(BlockedURLError, match="address"):
                load(url, **{**options, "allow_private_addresses": False})
            with pytest.raises(PayloadTooLargeError):
                load(url, max_bytes=len(PAYLOAD) - 1, **options)
            with pytest.raises(PayloadTooLargeError):
                load(url, download_budget=DownloadBudget(len(PAYLOAD) - 1), **options)
            budget = DownloadBudget(len(PAYLOAD))
            assert load(url, download_budget=budget, **options) == PAYLOAD
            assert budget.used_bytes == len(PAYLOAD)
            assert len(target.exchanges) <= 3


def test_a_folder_that_breaks_down_is_a_miss(load, options):
    with Server(lambda exchange: exchange.answer(PAYLOAD)) as server:
        load(server.url, **options)
        (entry,) = files(options["cache_dir"])
        entry.unlink()
        options["cache_dir"].rmdir()
        assert load(server.url, **options) == PAYLOAD
        assert load(server.url, **options) == PAYLOAD


@pytest.mark.parametrize("path", ["/dev/null/x", "/proc/x", "/proc", "\0"])
def test_a_folder_that_cannot_be_made_is_a_mistake(path):
    with pytest.raises(ConfigurationError):
        MediaConnector(cache_dir=path)


# --- by itself ---


def cache(folder: Path, max_bytes: int = 1 << 20, ttl_s: float = 1000) -> DiskCache:
    return DiskCache(folder, max_bytes=max_bytes, ttl_s=ttl_s)


def put(kept: DiskCache, url: str, payload: bytes, etag: bytes | None = None) -> None:
    kept.put(url, payload, allow_private=False, hosts=("a",), etag=etag)


def get(kept: DiskCache, url: str) -> bytes | None:
    entry = kept.get(url, allow_private=False, max_bytes=1 << 30)
    return None if entry is None else entry.payload


def test_the_least_recently_used_go_first_and_the_size_holds(tmp_path):
    kept = cache(tmp_path, max_bytes=100_000)
    for number in range(30):
        put(kept, f"u{number}", bytes(8_000))
        assert get(kept, "u0") is not None, number
        size = sum(file.stat().st_size for file in files(tmp_path))
        assert size <= 100_000
        time.sleep(0.002)
    assert get(kept, "u29") is not None
    assert get(kept, "u1") is None


def test_the_entry_just_written_stays_and_one_too_large_is_not_written(tmp_path):
    kept = cache(tmp_path, max_bytes=10_000)
    put(kept, "a", bytes(9_700))
    assert get(kept, "a") is not None
    put(kept, "b", bytes(9_700))
    assert get(kept, "b") is not None
    assert get(kept, "a") is None
    put(kept, "c", bytes(10_001))
    assert get(kept, "c") is None
    assert get(kept, "b") is not None


def test_entries_age(tmp_path):
    kept = cache(tmp_path, ttl_s=0.05)
    put(kept, "a", b"1")
    put(kept, "b", b"2", etag=b'"t"')
    time.sleep(0.06)
    assert kept.get("a", allow_private=False, max_bytes=10) is None
    entry = kept.get("b", allow_private=False, max_bytes=10)
    assert entry is not None
    assert (entry.payload, entry.etag, entry.is_fresh) == (b"2", b'"t"', False)


def test_a_damaged_entry_is_a_miss_at_every_byte(tmp_path):
    kept = cache(tmp_path)
    put(kept, "a", b"payload", etag=b'"t"')
    (file,) = files(tmp_path)
    content = file.read_bytes()
    for position in range(len(content)):
        file.write_bytes(content[:position])
        assert get(kept, "a") is None
        for bit in (1, 4, 128):
            damaged = bytearray(content)
            damaged[position] ^= bit
            file.write_bytes(damaged)
            assert get(kept, "a") in (None, b"payload")
    file.write_bytes(content + b"x")
    assert get(kept, "a") is None


def test_files_of_others_are_left_alone_and_abandoned_ones_swept(tmp_path):
    (tmp_path / "notes.txt").write_bytes(bytes(50_000))
    abandoned, recent = tmp_path / ".old.payload", tmp_path / ".new.payload"
    for file in (abandoned, recent):
        file.write_bytes(bytes(10))
    os.utime(abandoned, (0, 0))
    put(cache(tmp_path, max_bytes=10_000), "a", b"1")
    assert (tmp_path / "notes.txt").exists()
    assert recent.exists()
    assert not abandoned.exists()


WRITER = """
import sys
from safelight.connector.disk_cache import DiskCache
folder, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = DiskCache(folder, max_bytes=200_000, ttl_s=1000)
print("ready", flush=True)
for n in range(rounds):
    number = (n * 7 + seed) % 20
    kept.put(f"u{number}", bytes([number]) * 20_000, allow_private=False, hosts=("a",), etag=None)
    entry = kept.get(f"u{(number + 3) % 20}", allow_private=False, max_bytes=1 << 20)
    assert entry is None or entry.payload == bytes([(number + 3) % 20]) * 20_000
"""


def test_several_processes_share_a_folder(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(seed), "150"])
        for seed in range(3)
    ]
    assert [writer.wait(50) for writer in writers] == [0, 0, 0]
    kept = cache(tmp_path)
    found = [get(kept, f"u{number}") for number in range(20)]
    assert any(found)
    assert all(payload in (None, bytes([number]) * 20_000) for number, payload in enumerate(found))
    # Each of them may write a sixteenth before it counts again.
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 200_000 * 19 // 16


def test_a_crash_in_the_middle_leaves_no_short_entry(tmp_path):
    for delay_s in (0.0, 0.003, 0.01, 0.03):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), "0", "100000"], stdout=subprocess.PIPE
        )
        with writer, writer.stdout:
            writer.stdout.readline()
            time.sleep(delay_s)
            writer.kill()
    kept = cache(tmp_path)
    for number in range(20):
        assert get(kept, f"u{number}") in (None, bytes([number]) * 20_000)


def test_threads_share_one(tmp_path):
    kept = cache(tmp_path, max_bytes=50_000)
    failures = []

    def work(seed):
        for number in range(100):
            url = f"u{(number + seed) % 10}"
            put(kept, url, url.encode() * 3000)
            if get(kept, url) not in (None, url.encode() * 3000):
                failures.append(url)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
