"""The one table from exceptions to statuses, and what a client may read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from safelight import errors
from safelight.http_errors import error_body, http_status

STATUSES: dict[type[BaseException], int] = {
    errors.SafelightError: 500,
    errors.SpecError: 400,
    errors.RequestError: 400,
    errors.ConfigurationError: 500,
    errors.FetchError: 500,
    errors.TransientFetchError: 500,
    errors.BlockedURLError: 400,
    errors.FetchRefusedError: 422,
    errors.PayloadTooLargeError: 422,
    errors.MediaError: 422,
    errors.HeaderError: 422,
    errors.DecodeError: 422,
    errors.UnsupportedMediaError: 422,
    errors.LimitError: 422,
    errors.RawRefError: 400,
    errors.CacheMissError: 503,
    errors.ReleasedError: 500,
    ValueError: 400,
    TypeError: 500,
    OverflowError: 400,
    UnicodeDecodeError: 400,
    KeyError: 500,
    OSError: 500,
    TimeoutError: 500,
    RuntimeError: 500,
    RecursionError: 500,
    MemoryError: 500,
    NotImplementedError: 500,
    AssertionError: 500,
    ZeroDivisionError: 500,
    asyncio.CancelledError: 500,
    KeyboardInterrupt: 500,
}


def make(cls: type[BaseException]) -> BaseException:
    if cls is UnicodeDecodeError:
        return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "secret")
    return cls("secret")


def test_every_error_of_ours_is_in_the_table() -> None:
    assert {getattr(errors, name) for name in errors.__all__} <= STATUSES.keys()


@pytest.mark.parametrize(("cls", "status"), STATUSES.items())
def test_statuses(cls: type[BaseException], status: int) -> None:
    assert http_status(make(cls)) == status
    if cls is not UnicodeDecodeError:
        assert http_status(type("Derived", (cls,), {})()) == status


@pytest.mark.parametrize("name", errors.__all__)
def test_what_is_the_clients_is_a_value_error(name: str) -> None:
    cls = getattr(errors, name)
    # What an operator got wrong is a ValueError where the server is built, and nobody's request.
    is_operators = cls is errors.ConfigurationError
    assert issubclass(cls, ValueError) == (http_status(cls()) < 500 or is_operators)


def test_an_error_of_a_plugin_that_is_the_clients_is_a_400() -> None:
    class PluginError(errors.SafelightError, ValueError):
        pass

    assert http_status(PluginError("x")) == 400


@pytest.mark.parametrize("cls", STATUSES)
def test_bodies_carry_status_and_type(cls: type[BaseException]) -> None:
    error = make(cls)
    (body,) = error_body(error).values()
    assert body["code"] == http_status(error)
    assert body["param"] is None
    assert (
        body["type"]
        == {
            400: "BadRequestError",
            422: "UnprocessableEntityError",
            500: "InternalServerError",
            503: "ServiceUnavailableError",
        }[body["code"]]
    )
    assert body["message"]
    is_ours = isinstance(error, errors.SafelightError)
    assert ("secret" in body["message"]) == (
        is_ours and (body["code"] < 500 or isinstance(error, errors.FetchError))
    )


def test_a_failed_decode_names_modality_and_index() -> None:
    error = errors.DecodeError("image cannot be decoded").at("image", 3)
    assert error_body(error) == {
        "error": {
            "message": "image 3: image cannot be decoded",
            "type": "UnprocessableEntityError",
            "param": None,
            "code": 422,
            "modality": "image",
            "index": 3,
        }
    }
    first = errors.LimitError("too large", limit=1, actual=2).at("image", 0)
    assert error_body(first)["error"]["index"] == 0


def test_attributes_of_foreign_errors_are_not_told() -> None:
    error = ValueError("x")
    error.modality = "secret"  # type: ignore[attr-defined]
    assert "secret" not in str(error_body(error))


def test_hashes_are_not_told() -> None:
    assert "abc" not in str(error_body(errors.CacheMissError("lost abc", hashes=["abc"])))


@pytest.mark.parametrize(
    "text",
    [
        "cannot read <_io.BytesIO object at 0x7f3a2c1d9e40>",
        "<object at 0xDEADBEEF> is bad",
    ],
)
@pytest.mark.parametrize("cls", [errors.DecodeError, ValueError])
def test_addresses_are_not_told(text: str, cls: Any) -> None:
    # CVE-2026-22778
    assert "0x" not in str(error_body(cls(text)))


def test_no_web_framework_is_imported() -> None:
    program = (
        "import sys, safelight.http_errors\n"
        "assert not {'fastapi', 'starlette', 'aiohttp', 'http'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
