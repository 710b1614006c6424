"""The laws of a media ref: decode once, on request only; map, fork, release; pickling; threads."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import logging
import os
import pickle
import pprint
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from safelight import DecodeSpec, MediaRef, ReleasedError, SpecError, derive_media_key
from safelight.budget import Charge, DecodedBudget
from safelight.decodes import (
    collect_media_decodes,
    collect_media_decodes_async,
    submit_media_decodes,
)
from safelight.pool import MediaPool


class Decoder:
    """A decoder that counts its calls and fails the first `failures` of them."""

    def __init__(self, media: Any = "media", failures: int = 0) -> None:
        self.media = media
        self.failures = failures
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError(f"failure {self.calls}")
        return self.media


def must_not_decode() -> Any:
    pytest.fail("the decoder was called")


def test_a_ref_knows_its_payload_spec_and_key() -> None:
    data, spec = b"payload", DecodeSpec({"a": 1})
    ref = MediaRef(must_not_decode, data, spec)
    assert ref.data is data
    assert ref.spec is spec
    assert ref.key == derive_media_key(data, spec)
    assert not ref.is_decoded
    assert MediaRef(must_not_decode, data).key == derive_media_key(data, DecodeSpec())


def test_a_key_that_is_known_is_not_derived() -> None:
    assert MediaRef(must_not_decode, b"payload", key=b"k" * 32).key == b"k" * 32


def test_other_buffers_are_copied() -> None:
    buffer = bytearray(b"payload")
    ref = MediaRef(must_not_decode, buffer)  # type: ignore[arg-type]
    buffer[:] = b"another"
    assert ref.data == b"payload"


@pytest.mark.parametrize("data", ["text", 5, None])
def test_a_payload_is_a_buffer(data: Any) -> None:
    with pytest.raises(TypeError):
        MediaRef(must_not_decode, data)


def test_decodes_once() -> None:
    decoder = Decoder()
    ref = MediaRef(decoder, b"x")
    assert ref.decode() is decoder.media
    assert ref.decode() is decoder.media
    assert ref.is_decoded
    assert decoder.calls == 1


def test_none_is_media_too() -> None:
    decoder = Decoder(media=None)
    ref = MediaRef(decoder, b"x")
    assert ref.decode() is None
    assert ref.decode() is None
    assert decoder.calls == 1
    assert ref.is_decoded


@pytest.mark.parametrize("error", [OSError("broken"), KeyboardInterrupt(), SystemExit(1)])
def test_what_a_decoder_raises_propagates_unchanged_and_is_forgotten(error: BaseException) -> None:
    answers: list[Any] = [error, "media"]

    def decoder() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    ref = MediaRef(decoder, b"x")
    with pytest.raises(type(error)) as caught:
        ref.decode()
    assert caught.value is error
    assert not ref.is_decoded
    assert ref.data == b"x"
    assert ref.decode() == "media"


def test_a_decoder_that_asks_for_its_own_media_is_told_so() -> None:
    refs: list[MediaRef[Any]] = []

    def decoder() -> Any:
        return refs[0].decode()

    refs.append(MediaRef(decoder, b"x"))
    refs.append(refs[0].fork())
    with pytest.raises(RuntimeError, match="its own"):
        refs[1].decode()


# --- map ---


def test_mapping_without_settings_keeps_key_spec_and_header() -> None:
    header = SimpleNamespace(width=3)
    parent: MediaRef[int] = MediaRef(Decoder(2), b"x", DecodeSpec({"a": 1}), header=header)
    child = parent.map(lambda number: number + 1)
    assert (child.key, child.spec, child.header) == (parent.key, parent.spec, header)
    assert child.data is parent.data
    assert child.decode() == 3


def test_mapping_with_settings_extends_the_key_without_hashing_the_payload_again() -> None:
    parent: MediaRef[int] = MediaRef(Decoder(2), b"raw", DecodeSpec({"a": 1}), header=object())
    child = parent.map(lambda number: number * 10, b=2)
    assert child.spec == DecodeSpec({"a": 1, "b": 2})
    assert child.key == derive_media_key(parent.key, child.spec)
    assert child.key.hex().startswith("95d92364147e34a3")
    # The header told what the parent's media is, not the child's.
    assert child.header is None
    assert child.decode() == 20


def test_mapping_with_a_repeated_name_overrides_it() -> None:
    child = MediaRef(must_not_decode, b"x", DecodeSpec({"a": 1})).map(str, a=2)
    assert child.spec == DecodeSpec({"a": 2})


def test_the_way_to_a_spec_counts() -> None:
    ref = MediaRef(must_not_decode, b"x")
    assert ref.map(str, a=1).map(str, b=2).spec == ref.map(str, a=1, b=2).spec
    assert ref.map(str, a=1).map(str, b=2).key != ref.map(str, a=1, b=2).key


def test_mapping_takes_any_setting_name() -> None:
    child = MediaRef(must_not_decode, b"x").map(str, self=1, transform=2)
    assert child.spec.settings == {"self": 1, "transform": 2}


def test_mapping_with_what_is_no_setting_fails_at_once() -> None:
    with pytest.raises(SpecError):
        MediaRef(must_not_decode, b"x").map(str, a=float("nan"))


def test_a_transform_runs_once_and_the_parent_decodes_once() -> None:
    decoder, calls = Decoder(2), []

    def transform(number: int) -> int:
        calls.append(number)
        return number + 1

    parent: MediaRef[int] = MediaRef(decoder, b"x")
    child = parent.map(transform)
    assert child.decode() == child.decode() == child.fork().decode() == 3
    assert (parent.decode(), decoder.calls, calls) == (2, 1, [2])
    assert parent.map(transform).decode() == 3
    assert calls == [2, 2]


def test_a_failing_transform_is_tried_again_without_decoding_again() -> None:
    decoder, calls = Decoder(2), []

    def transform(number: int) -> int:
        calls.append(number)
        if len(calls) == 1:
            raise OSError("no")
        return number + 1

    child = MediaRef(decoder, b"x").map(transform)
    with pytest.raises(OSError, match="no"):
        child.decode()
    assert child.decode() == 3
    assert decoder.calls == 1


def test_a_map_owns_a_share_of_the_payload() -> None:
    parent = MediaRef(Decoder(2), b"x")
    child = parent.map(str)
    parent.release()
    assert child.data == b"x"
    assert child.decode() == "2"


def test_releasing_a_map_leaves_its_parent_usable() -> None:
    parent = MediaRef(Decoder(2), b"x")
    child = parent.map(str)
    child.release()
    assert parent.data == b"x"
    with pytest.raises(ReleasedError):
        child.decode()
    assert parent.decode() == 2
    # The parent's media is not the map's.
    with pytest.raises(ReleasedError):
        child.decode()


def test_mapping_a_released_ref_works_as_far_as_it_is_decoded() -> None:
    decoded, undecoded = MediaRef(Decoder(2), b"x"), MediaRef(must_not_decode, b"x")
    decoded.decode()
    for ref in (decoded, undecoded):
        ref.release()
    assert decoded.map(str, a=1).decode() == "2"
    child = undecoded.map(str, a=1)
    assert child.spec == DecodeSpec({"a": 1})
    with pytest.raises(ReleasedError):
        child.decode()


# --- fork and release ---


def test_forks_share_everything_but_their_release() -> None:
    decoder = Decoder()
    ref = MediaRef(decoder, b"x", DecodeSpec({"a": 1}), header="header")
    fork = ref.fork()
    assert type(fork) is MediaRef
    assert (fork.key, fork.spec, fork.header) == (ref.key, ref.spec, ref.header)
    assert fork.data is ref.data
    fork.release()
    assert (fork.data, ref.data) == (b"", b"x")
    assert ref.decode() is decoder.media
    # Whichever fork decodes, all are decoded.
    assert fork.is_decoded
    assert fork.decode() is decoder.media
    assert decoder.calls == 1


def test_release_keeps_what_is_decoded() -> None:
    ref = MediaRef(Decoder(), b"x", DecodeSpec({"a": 1}))
    ref.decode()
    key = ref.key
    ref.release()
    ref.release()
    assert (ref.data, ref.key, ref.spec) == (b"", key, DecodeSpec({"a": 1}))
    assert ref.decode() == "media"


def test_a_released_ref_that_was_not_decoded_says_so() -> None:
    ref = MediaRef(must_not_decode, b"x")
    ref.release()
    with pytest.raises(RuntimeError, match="released") as caught:
        ref.decode()
    assert isinstance(caught.value, ReleasedError)
    assert not isinstance(caught.value, ValueError)


class Payload(SimpleNamespace):
    """Something that a weak reference can watch."""


@pytest.mark.parametrize("end", ["decode", "release", "fail and release"])
def test_the_decoder_is_dropped_with_all_it_holds(end: str) -> None:
    pinned = Payload()
    alive = weakref.ref(pinned)

    def decoder(pinned: Any = pinned) -> str:
        if end.startswith("fail"):
            raise OSError("no")
        return "media"

    ref = MediaRef(decoder, b"x")
    fork, child = ref.fork(), ref.map(str)
    del decoder, pinned
    if end == "fail and release":
        with pytest.raises(OSError, match="no"):
            ref.decode()
    if end == "decode":
        child.decode()
    else:
        for each in (ref, fork, child):
            assert alive() is not None
            each.release()
    gc.collect()
    assert alive() is None


# --- nothing decodes by accident ---


def log(ref: MediaRef[Any]) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    record = logging.LogRecord("name", logging.INFO, __file__, 1, "%s %r", (ref, ref), None)
    handler.emit(record)
    return stream.getvalue()


@pytest.mark.parametrize(
    "look",
    [
        repr,
        str,
        "{0} {0!r}".format,
        pprint.pformat,
        log,
        hash,
        bool,
        id,
        dir,
        copy.copy,
        copy.deepcopy,
        np.asarray,
        lambda ref: np.array([ref, ref]),
        lambda ref: ref == ref.fork(),
        lambda ref: ref in [1, ref],
        lambda ref: {ref: 1},
        lambda ref: ref.map(must_not_decode),
        lambda ref: ref.map(must_not_decode, a=1),
        lambda ref: ref.fork(),
        lambda ref: (ref.key, ref.spec, ref.data, ref.header, ref.is_decoded),
        lambda ref: [getattr(ref, name) for name in dir(ref)],
        lambda ref: ref.refund(),
        lambda ref: ref.release(),
    ],
)
def test_looking_at_a_ref_does_not_decode_it(look: Callable[[MediaRef[Any]], Any]) -> None:
    ref = MediaRef(must_not_decode, b"payload")
    look(ref)
    assert not ref.is_decoded


@pytest.mark.parametrize(
    "use",
    [iter, len, list, lambda ref: ref[0], lambda ref: ref.size, lambda ref: 1 in ref, float, vars],
)
def test_a_ref_forwards_nothing(use: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        use(MediaRef(must_not_decode, b"payload"))


@pytest.mark.parametrize(
    "name", ["__getattr__", "__iter__", "__len__", "__getitem__", "__array__", "__dict__"]
)
def test_a_ref_has_no_door_to_its_media(name: str) -> None:
    assert not hasattr(MediaRef(must_not_decode, b""), name)


def test_a_ref_cannot_be_given_other_contents() -> None:
    ref = MediaRef(must_not_decode, b"x")
    for name in ("key", "spec", "data", "is_decoded", "other"):
        with pytest.raises(AttributeError):
            setattr(ref, name, None)


def test_repr_says_the_state_and_the_size_and_no_more() -> None:
    ref = MediaRef(Decoder(), b"secret!")
    assert repr(ref) == "<MediaRef undecoded, 7 bytes>"
    ref.decode()
    assert repr(ref) == "<MediaRef decoded, 7 bytes>"


def test_copies_are_forks() -> None:
    decoder = Decoder()
    ref = MediaRef(decoder, b"x")
    for twin in (copy.copy(ref), copy.deepcopy([ref])[0]):
        assert twin is not ref
        assert twin.data is ref.data
        twin.release()
    assert ref.decode() == "media"


# --- pickling ---


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_materializes(protocol: int) -> None:
    decoder = Decoder(("media", 1))
    ref = MediaRef(decoder, b"x", DecodeSpec({"a": 1}))
    twin = pickle.loads(pickle.dumps(ref, protocol))
    assert ref.is_decoded
    assert twin.is_decoded
    assert twin.data == b""
    assert (twin.key, twin.spec, twin.decode()) == (ref.key, ref.spec, ("media", 1))
    twin.release()
    assert twin.decode() == ("media", 1)
    assert pickle.loads(pickle.dumps(twin)).key == ref.key


def test_a_pickle_is_the_media_without_the_payload() -> None:
    ref = MediaRef(Decoder("media"), b"payload" * 1000)
    assert b"payload" not in pickle.dumps(ref)


def test_pickling_what_cannot_be_decoded_raises() -> None:
    ref = MediaRef(must_not_decode, b"x")
    ref.release()
    with pytest.raises(ReleasedError):
        pickle.dumps(ref)
    with pytest.raises(OSError, match="failure 1"):
        pickle.dumps(MediaRef(Decoder(failures=1), b"x"))


def test_an_unpickled_ref_can_be_mapped() -> None:
    ref: MediaRef[int] = MediaRef(Decoder(2), b"x", DecodeSpec({"a": 1}))
    child = pickle.loads(pickle.dumps(ref)).map(str, b=2)
    assert child.key == ref.map(str, b=2).key
    assert child.decode() == "2"


# --- budget ---


def test_a_refund_reaches_the_budget_once() -> None:
    budget = DecodedBudget(100)
    ref = MediaRef(Decoder(), b"x", charge=Charge(budget, 60))
    fork = ref.map(str)
    ref.refund()
    fork.refund()
    assert budget.used_bytes == 0
    MediaRef(Decoder(), b"x").refund()


# --- threads ---


@pytest.mark.timeout(60)
@pytest.mark.parametrize("failures", [0, 3])
def test_threads_share_one_decode(failures: int) -> None:
    threads = 8
    barrier = threading.Barrier(threads, timeout=30)
    decoder = Decoder(failures=failures)
    ref = MediaRef(decoder, b"x")
    forks = [ref.fork() for _ in range(threads)]

    def decode(fork: MediaRef[Any]) -> Any:
        barrier.wait()
        try:
            return fork.decode()
        except OSError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(decode, forks, timeout=30))
    # A failure reaches all who joined, each as an exception of its own; others tried again.
    failed = [answer for answer in answers if answer != "media"]
    assert len({id(error) for error in failed}) == len(failed)
    assert ref.is_decoded or decoder.calls == len({str(error) for error in failed})
    assert decoder.calls <= failures + 1
    if not failures:
        assert (answers, decoder.calls) == (["media"] * threads, 1)


@pytest.mark.timeout(60)
def test_release_during_a_decode_lets_it_finish() -> None:
    has_started, may_end = threading.Event(), threading.Event()

    def decoder() -> str:
        has_started.set()
        assert may_end.wait(30)
        return "media"

    ref = MediaRef(decoder, b"x")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ref.decode)
        assert has_started.wait(30)
        release = threading.Thread(target=ref.release)
        release.start()
        may_end.set()
        assert answer.result(30) == "media"
        release.join(30)
    assert ref.data == b""
    assert ref.is_decoded
    assert ref.decode() == "media"


@pytest.mark.parametrize("line", range(8))
def test_a_decode_overtaken_by_a_decode_and_a_release_has_the_media(line: int) -> None:
    # Another thread's calls, placed before the line-th line that `decode` runs.
    decoder = Decoder()
    ref = MediaRef(decoder, b"x")
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code is not MediaRef.decode.__code__:
            return None
        if event == "line":
            lines += 1
            if lines == line + 1:
                ref.fork().decode()
                ref.release()
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        media = ref.decode()
    finally:
        sys.settrace(previous)
    assert media == "media"
    assert decoder.calls == 1


@pytest.mark.timeout(60)
def test_failure_goes_to_all_who_joined_and_is_forgotten() -> None:
    has_started, may_end = threading.Event(), threading.Event()

    def decoder() -> str:
        if not has_started.is_set():
            has_started.set()
            assert may_end.wait(30)
            raise OSError("broken")
        return "media"

    ref = MediaRef(decoder, b"x")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(ref.decode)
        assert has_started.wait(30)
        others = [pool.submit(ref.fork().decode) for _ in range(2)]
        time.sleep(0.1)
        may_end.set()
        errors = [future.exception(30) for future in (first, *others)]
    assert [str(error) for error in errors] == ["broken"] * 3
    assert len({id(error) for error in errors}) == 3
    assert [error.__cause__ for error in errors if error] == [None, errors[0], errors[0]]
    assert ref.decode() == "media"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("pooled", [0, 1, 2])
def test_refs_that_ask_for_each_other_are_told_so(mapped: bool, pooled: int) -> None:
    pool = MediaPool(2)
    both = threading.Barrier(2, timeout=20)
    refs: list[MediaRef[Any]] = []

    def ask(number: int) -> Any:
        both.wait()
        return refs[1 - number].decode()

    refs += [MediaRef(lambda number=number: ask(number), b"") for number in range(2)]
    asked = [ref.map(str) for ref in refs] if mapped else refs
    with ThreadPoolExecutor(2) as threads:
        jobs: list[Any] = pool.submit_batch([ref.decode_job() for ref in asked[:pooled]])
        jobs += [threads.submit(ref.decode) for ref in asked[pooled:]]
        errors = [job.exception(20) for job in jobs]
        assert [type(error) for error in errors] == [RuntimeError] * 2
        assert MediaRef(lambda: "unharmed", b"").decode() == "unharmed"
        assert pool.submit(lambda: "unharmed").result(20) == "unharmed"
    pool.shutdown()


@pytest.mark.timeout(60)
def test_threads_jobs_and_loops_share_one_decode() -> None:
    pool = MediaPool(2)
    has_started, may_end = threading.Event(), threading.Event()
    decoder = Decoder(media=["media"])

    def slow() -> Any:
        has_started.set()
        assert may_end.wait(30)
        return decoder()

    ref = MediaRef(slow, b"x")

    async def ask() -> list[Any]:
        return await collect_media_decodes_async(submit_media_decodes([ref.fork()], pool))

    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(ref.decode)]
        assert has_started.wait(30)
        asked += [threads.submit(ref.fork().decode) for _ in range(2)]
        loops = [threads.submit(lambda: asyncio.run(ask())) for _ in range(3)]
        jobs = submit_media_decodes([ref, ref.fork()], pool)
        time.sleep(0.1)
        # None of them keeps a thread of the pool from others.
        assert pool.submit(lambda: "free").result(20) == "free"
        may_end.set()
        media = [future.result(30) for future in asked]
        media += [each for future in loops for each in future.result(30)]
        media += collect_media_decodes(jobs)
    assert len(media) == 8
    assert {id(each) for each in media} == {id(decoder.media)}
    assert decoder.calls == 1
    pool.shutdown()


@pytest.mark.timeout(60)
def test_interrupted_waiter_leaves_and_the_decode_goes_on() -> None:
    has_started, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        has_started.set()
        assert may_end.wait(30)
        return "media"

    ref = MediaRef(slow, b"x")
    with ThreadPoolExecutor(2) as threads:
        decoding = threads.submit(ref.decode)
        assert has_started.wait(30)
        threads.submit(lambda: (time.sleep(0.2), os.kill(os.getpid(), signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            ref.decode()
        assert not decoding.done()
        may_end.set()
        assert decoding.result(30) == "media"
    assert ref.decode() == "media"


@pytest.mark.timeout(120)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.parametrize("work", ["gate.wait(20)", "None"], ids=["long", "short"])
def test_forking_while_another_thread_decodes_leaves_the_child_able_to(work: str) -> None:
    # In a process of its own: forking one that has threads is what is tested.
    program = f"""
    import os, signal, sys, threading
    from safelight import MediaRef

    gate, has_started, parent = threading.Event(), threading.Event(), os.getpid()

    def decoder():
        if os.getpid() == parent:  # a lock of an event may be held at the fork too
            has_started.set()
            {work}
        return "media"

    def decode_forever():
        while not gate.is_set():
            ref = MediaRef(decoder, b"x")
            refs[:] = [ref, ref.fork(), ref.map(str.upper)]
            for each in list(refs):
                each.decode()

    refs = []
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=decode_forever, daemon=True)
    thread.start()
    assert has_started.wait(20)
    for _ in range(20):
        child = os.fork()
        if not child:
            signal.alarm(20)  # ends a child that hangs
            os._exit([each.decode().lower() for each in refs] != ["media"] * 3)
        assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"
    gate.set()
    thread.join(20)
    """
    subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        check=True,
        timeout=100,
    )


@pytest.mark.timeout(30)
def test_signal_as_the_decode_starts_leaves_it_to_be_tried_again() -> None:
    """A signal handler may raise wherever a function is entered."""

    def decoder() -> int:
        return len([None] * seven())

    def seven() -> int:
        return 7

    ref = MediaRef(decoder, b"")
    entered: list[str] = []

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename.endswith("ref.py") and event == "call":
            entered.append(frame.f_code.co_name)
            if len(entered) == last:
                raise KeyboardInterrupt

    before = sys.gettrace()
    for last in [1, 2, 3]:  # noqa: B007 - read by `interrupt`
        entered.clear()
        sys.settrace(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                ref.decode()
        finally:
            sys.settrace(before)
    assert not ref.is_decoded
    assert ref.decode() == 7
