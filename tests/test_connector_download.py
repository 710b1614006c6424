"""A fetch as a state machine: what it decides, without a server or a clock."""

from __future__ import annotations

import pytest

from safelight import (
    DownloadBudget,
    FetchError,
    FetchRefusedError,
    PayloadTooLargeError,
    TransientFetchError,
)
from safelight.connector.download import Download, FetchPolicy
from safelight.connector.http_url import AllowedDomains, parse_http_url

URL = "http://a.example/x"


def download(**options) -> Download:
    policy = {"domains": AllowedDomains(None), "max_redirects": 3, "retries": 3, "backoff_s": 0.1}
    for name in set(policy) & set(options):
        policy[name] = options.pop(name)
    return Download(parse_http_url(URL), FetchPolicy(**policy), **{"max_bytes": 1000, **options})


def head(**fields: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]


def test_waits_double_within_their_jitter_up_to_a_cap():
    for _ in range(20):
        fetch = download(retries=8, backoff_s=0.1)
        delays = [fetch.retry(TransientFetchError("x")) for _ in range(8)]
        for number, delay_s in enumerate(delays):
            longest = min(0.1 * 2**number, 2.0)
            assert longest / 2 <= delay_s <= longest
        with pytest.raises(FetchError, match=r"^x, after 9 attempts$"):
            fetch.retry(TransientFetchError("x"))


def test_a_server_may_ask_for_more_time_once():
    fetch = download()
    with pytest.raises(FetchError):
        fetch.receive_head(503, head(Retry_After="7"))
    assert fetch.retry(TransientFetchError("x")) == 7
    assert fetch.retry(TransientFetchError("x")) < 7
    with pytest.raises(FetchError):
        fetch.receive_head(503, head(Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"))
    assert fetch.retry(TransientFetchError("x")) <= 2


@pytest.mark.parametrize(
    "error", [FetchRefusedError("x"), PayloadTooLargeError("x"), FetchError("x")]
)
def test_a_final_failure_is_not_tried_again(error):
    with pytest.raises(type(error)) as caught:
        download().retry(error)
    assert caught.value is error


def test_a_retry_starts_over_at_the_first_hop_with_nothing_kept():
    budget = DownloadBudget(1000)
    fetch = download(budget=budget)
    assert not fetch.receive_head(302, head(Location="/y"))
    assert fetch.url.target == b"/y"
    assert fetch.receive_head(200, head(Content_Length="10"))
    fetch.receive(b"12345")
    assert budget.used_bytes == 10
    fetch.retry(TransientFetchError("x"))
    assert budget.used_bytes == 0
    assert fetch.url.target == b"/x"
    assert fetch.receive_head(200, head(Content_Length="2"))
    fetch.receive(b"ab")
    assert fetch.finish() == b"ab"
    assert budget.used_bytes == 2


def test_a_length_is_ignored_where_chunks_say_it():
    fetch = download()
    assert fetch.receive_head(200, head(Content_Length="5000", Transfer_Encoding="chunked"))
    fetch.receive(b"x")
    assert fetch.finish() == b"x"


def test_an_unannounced_body_is_charged_as_it_comes():
    budget = DownloadBudget(10)
    fetch = download(budget=budget)
    fetch.receive_head(200, [])
    fetch.receive(b"123456")
    assert budget.used_bytes == 6
    with pytest.raises(PayloadTooLargeError):
        fetch.receive(b"789ab")
    fetch.abandon()
    fetch.abandon()
    assert budget.used_bytes == 0


def test_a_tag_is_sent_on_the_way_that_led_to_it_only():
    fetch = download()
    fetch.validate(b'"t"', ("a.example", "b.example"))
    assert b"If-None-Match" not in dict(fetch.headers)
    with pytest.raises(FetchRefusedError):
        fetch.receive_head(304, [])
    fetch.receive_head(302, head(Location="http://b.example/"))
    assert dict(fetch.headers)[b"If-None-Match"] == b'"t"'
    assert dict(fetch.headers)[b"Host"] == b"b.example"
    assert not fetch.receive_head(304, [])
    assert fetch.is_not_modified
