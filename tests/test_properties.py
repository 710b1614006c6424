"""Laws that cross modules, over drawn sequences of operations."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from safelight import DecodeSpec, MediaRef, MultiModalHasher, ReleasedError, derive_media_key


class DrawnError(Exception):
    """What a drawn decoder raises."""


@dataclass(eq=False)
class Media:
    """The model of one decode: shared by the forks of a ref."""

    value: str
    failures: int = 0
    calls: int = 0
    is_decoded: bool = False
    parent: Media | None = None
    # Whether the parent ref was released already when it was mapped.
    is_parent_released: bool = False

    def expected_error(self) -> type[Exception] | None:
        """What the next decode raises, or None."""
        if self.is_decoded:
            return None
        if self.parent is not None and not self.parent.is_decoded:
            if self.is_parent_released:
                return ReleasedError
            error = self.parent.expected_error()
            if error is not None:
                return error
        return DrawnError if self.failures else None

    def decode(self) -> None:
        """Follow a decode that was run."""
        if self.is_decoded:
            return
        if self.parent is not None and not self.parent.is_decoded:
            if self.is_parent_released:
                return
            self.parent.decode()
            if not self.parent.is_decoded:
                return
        self.calls += 1
        if self.failures:
            self.failures -= 1
        else:
            self.is_decoded = True


@dataclass(eq=False)
class Model:
    """The model of one ref."""

    ref: MediaRef[str]
    media: Media
    data: bytes
    spec: DecodeSpec
    key: bytes
    is_released: bool = False

    def expected_error(self) -> type[Exception] | None:
        """What `decode` raises, or None."""
        if self.is_released and not self.media.is_decoded:
            return ReleasedError
        return self.media.expected_error()


class Calls:
    """A decoder or transform that fails as its model says and counts."""

    def __init__(self, media: Media) -> None:
        self.media = media
        self.failures = media.failures
        self.calls = 0

    def __call__(self, value: str = "") -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise DrawnError
        return self.media.value


settings_dicts = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.text(max_size=2))
failures = st.sampled_from([0, 0, 1, 2])


class RefMachine(RuleBasedStateMachine):
    """Maps, forks, releases, decodes and pickles refs in any order."""

    refs: Bundle[Model] = Bundle("refs")

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []
        self.calls: list[Calls] = []
        self.names = 0

    def _media(self, failures: int, **fields: Any) -> Media:
        self.names += 1
        media = Media(f"media {self.names}", failures, **fields)
        self.calls.append(Calls(media))
        return media

    def _add(self, model: Model) -> Model:
        self.models.append(model)
        return model

    @rule(target=refs, data=st.binary(max_size=3), settings=settings_dicts, failures=failures)
    def load(self, data: bytes, settings: dict[str, Any], failures: int) -> Model:
        spec = DecodeSpec(settings)
        media = self._media(failures)
        ref = MediaRef(self.calls[-1], data, spec)
        return self._add(Model(ref, media, data, spec, derive_media_key(data, spec)))

    @rule(target=refs, model=refs, settings=settings_dicts, failures=failures)
    def map(self, model: Model, settings: dict[str, Any], failures: int) -> Model:
        media = self._media(failures, parent=model.media, is_parent_released=model.is_released)
        ref = model.ref.map(self.calls[-1], **settings)
        spec, key = model.spec, model.key
        if settings:
            spec = DecodeSpec({**spec.settings, **settings})
            key = derive_media_key(key, spec)
        data = b"" if model.is_released else model.data
        return self._add(Model(ref, media, data, spec, key))

    @rule(target=refs, model=refs)
    def fork(self, model: Model) -> Model:
        fork = Model(
            model.ref.fork(), model.media, model.data, model.spec, model.key, model.is_released
        )
        return self._add(fork)

    @rule(model=refs)
    def release(self, model: Model) -> None:
        model.ref.release()
        model.is_released = True

    @rule(model=consumes(refs))
    def forget(self, model: Model) -> None:
        # What others share with it must stay alive.
        self.models.remove(model)
        del model.ref

    @rule(model=refs)
    def decode(self, model: Model) -> None:
        self._decode(model, model.ref.decode)

    @rule(target=refs, model=refs)
    def pickle(self, model: Model) -> Any:
        pickled: bytes | None = self._decode(model, lambda: pickle.dumps(model.ref))
        if pickled is None:
            return multiple()
        ref = pickle.loads(pickled)
        media = Media(model.media.value, is_decoded=True)
        return self._add(Model(ref, media, b"", model.spec, model.key))

    def _decode(self, model: Model, run: Any) -> Any:
        error = model.expected_error()
        answer = None
        if error is None:
            answer = run()
        else:
            with pytest.raises(error):
                run()
        if error is not ReleasedError or not model.is_released:
            model.media.decode()
        return answer

    @invariant()
    def refs_are_as_their_models(self) -> None:
        for model in self.models:
            ref = model.ref
            assert ref.is_decoded == model.media.is_decoded
            assert ref.data == (b"" if model.is_released else model.data)
            assert (ref.spec, ref.key) == (model.spec, model.key)
            if model.media.is_decoded:
                assert ref.decode() == model.media.value

    @invariant()
    def every_decoder_ran_as_often_as_its_model(self) -> None:
        for calls in self.calls:
            assert calls.calls == calls.media.calls

    @invariant()
    def hashing_decodes_nothing(self) -> None:
        for model in self.models[:3]:
            was_decoded = model.ref.is_decoded
            MultiModalHasher.hash_kwargs("sha256", image=model.ref)
            assert model.ref.is_decoded == was_decoded


TestRefs = pytest.mark.timeout(300)(RefMachine.TestCase)
