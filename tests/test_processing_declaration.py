"""What a class declares about its methods, and where that ends."""

from __future__ import annotations

from typing import Any

import pytest

from safelight.processing.qwen_vl import Qwen2VLMultiModalProcessor, Qwen3VLMultiModalProcessor
from tiny_model import Picture, TinyProcessor, make_inputs, make_processor


class Parallel(TinyProcessor):
    processes_in_parallel = True


class Mixin:
    def _merge(self, state: Any) -> Any:
        return super()._merge(state)  # type: ignore[misc]


class ProcessingMixin:
    def _call_hf_processor(self, mm_data: Any, mm_kwargs: Any) -> Any:
        return super()._call_hf_processor(mm_data, mm_kwargs)  # type: ignore[misc]


def family(*bases: type, **members: Any) -> Any:
    return type("Family", bases, members)


def test_a_mixin_that_overrides_ends_it() -> None:
    assert not make_processor(family(Mixin, Parallel)).supports_two_phase
    assert make_processor(family(Mixin, Parallel)).holds("processes_in_parallel")
    assert make_processor(family(ProcessingMixin, Parallel)).supports_two_phase
    assert not make_processor(family(ProcessingMixin, Parallel)).holds("processes_in_parallel")
    assert make_processor(family(Mixin, Parallel, two_phase=True)).supports_two_phase
    declaring = family(ProcessingMixin, Parallel, processes_in_parallel=True)
    assert make_processor(declaring).holds("processes_in_parallel")


def test_a_declaration_of_a_mixin_is_of_no_method_of_the_family() -> None:
    mixin = type("Declares", (), {"two_phase": True, "apply": Parallel.apply})
    assert not make_processor(family(mixin, TinyProcessor)).supports_two_phase


def test_a_patch_of_a_class_ends_it_and_undoing_it_brings_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor, heir = make_processor(Parallel), make_processor(family(Parallel))

    def apply(self: Any, *args: Any) -> Any:
        return TinyProcessor.apply(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Parallel, "apply", apply)
        assert not processor.supports_two_phase
        assert not heir.supports_two_phase
        assert make_processor(TinyProcessor).supports_two_phase
    assert processor.supports_two_phase
    assert heir.supports_two_phase


def test_a_patch_of_an_instance_ends_it_for_that_instance() -> None:
    processor, other = make_processor(Parallel), make_processor(Parallel)
    processor.apply_phase2 = lambda state: None
    processor._get_prompt_updates = lambda *_: []
    assert not processor.supports_two_phase
    assert not processor.holds("processes_in_parallel")
    assert other.supports_two_phase
    assert other.holds("processes_in_parallel")


def test_what_is_not_covered_may_be_overridden() -> None:
    free = family(Parallel, _validate_item=lambda *_: None, _get_targets=lambda _: {})
    assert make_processor(free).supports_two_phase
    assert make_processor(free).holds("processes_in_parallel")


def test_parallel_processing_is_not_inherited_by_another_way_to_process() -> None:
    def fields(self: Any, *args: Any) -> Any:
        return Parallel._get_mm_fields_config(self, *args)

    assert not make_processor(family(Parallel, _get_mm_fields_config=fields)).holds(
        "processes_in_parallel"
    )


@pytest.mark.parametrize("served", [Qwen2VLMultiModalProcessor, Qwen3VLMultiModalProcessor])
def test_the_families_that_are_served_declare_both(served: type[Any]) -> None:
    processor: Any = served.__new__(served)
    assert processor.supports_two_phase
    assert processor.holds("processes_in_parallel")


def test_prompt_updates_are_asked_for_with_items_only() -> None:
    counts: list[tuple[int, int]] = []

    class Family(TinyProcessor):
        def _get_prompt_updates(self, mm_items: Any, kwargs: Any, out_mm_kwargs: Any) -> Any:
            counts.append((mm_items.get_count("image"), len(out_mm_kwargs["image"])))
            return super()._get_prompt_updates(mm_items, kwargs, out_mm_kwargs)

    processor = make_processor(Family)
    processor.apply(make_inputs(processor, [], prompt="hi"))
    processor.apply(make_inputs(processor, [Picture("a").ref(), Picture("b").ref()]))
    assert counts == [(1, 1), (1, 1)]
