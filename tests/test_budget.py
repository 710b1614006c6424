"""Budgets: nothing is taken that is not there, and everything refunded comes back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from safelight import LimitError, PayloadTooLargeError
from safelight.budget import Charge, DecodedBudget, DownloadBudget


@pytest.mark.parametrize(
    ("cls", "error"), [(DecodedBudget, LimitError), (DownloadBudget, PayloadTooLargeError)]
)
def test_a_charge_takes_all_or_nothing(
    cls: type[DecodedBudget | DownloadBudget], error: type[LimitError | PayloadTooLargeError]
) -> None:
    budget = cls(100)
    budget.charge(60)
    with pytest.raises(error, match="over its budget 100") as caught:
        budget.charge(41)
    assert (caught.value.limit, caught.value.actual) == (100, 101)
    assert budget.used_bytes == 60
    budget.charge(40)
    budget.charge(0)
    assert budget.used_bytes == budget.max_bytes == 100
    budget.refund(100)
    assert budget.used_bytes == 0


def test_a_budget_of_nothing_allows_nothing_but_nothing() -> None:
    budget = DecodedBudget(0)
    budget.charge(0)
    with pytest.raises(LimitError):
        budget.charge(1)


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        DecodedBudget(-1)


@pytest.mark.parametrize("call", ["charge", "refund"])
def test_amounts_are_not_negative(call: str) -> None:
    budget = DecodedBudget(100)
    budget.charge(10)
    with pytest.raises(ValueError, match="must"):
        getattr(budget, call)(-1)
    assert budget.used_bytes == 10


def test_what_was_not_charged_is_not_refunded() -> None:
    budget = DownloadBudget(100)
    budget.charge(10)
    with pytest.raises(ValueError, match="refund"):
        budget.refund(11)
    assert budget.used_bytes == 10


def test_a_charge_that_does_not_fit_is_not_made() -> None:
    budget = DecodedBudget(100)
    with pytest.raises(LimitError):
        Charge(budget, 101)
    assert budget.used_bytes == 0


def test_a_settled_charge_is_kept() -> None:
    budget = DecodedBudget(100)
    charge = Charge(budget, 60)
    charge.settle(40)
    charge.refund()
    assert budget.used_bytes == 40


def test_a_refunded_charge_settles_anew() -> None:
    # A hit that was evicted before it was used decodes after all.
    budget = DecodedBudget(100)
    charge = Charge(budget, 60)
    charge.refund()
    charge.refund()
    assert budget.used_bytes == 0
    other = Charge(budget, 50)
    with pytest.raises(LimitError):
        charge.settle(60)
    assert budget.used_bytes == 50
    other.refund()
    charge.settle(60)
    assert budget.used_bytes == 60


def test_settling_beyond_the_budget_keeps_what_was_held() -> None:
    budget = DecodedBudget(100)
    charge = Charge(budget, 60)
    with pytest.raises(LimitError):
        charge.settle(101)
    assert budget.used_bytes == 60
    charge.refund()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("cls", [DecodedBudget, DownloadBudget])
def test_a_charge_comes_back_only_from_what_fails(
    cls: type[DecodedBudget | DownloadBudget],
) -> None:
    budget = cls(100)
    with Charge(budget, 30):
        pass
    assert budget.used_bytes == 30
    charge = Charge(budget, 60)

    def fails() -> None:
        with charge:
            charge.reserve(70)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert budget.used_bytes == 30
    assert charge.held_bytes == 0
    with pytest.raises((LimitError, PayloadTooLargeError)), Charge(budget, 71):
        pass
    assert budget.used_bytes == 30


def test_a_charge_to_no_budget_is_never_refused() -> None:
    charge = Charge(None)
    charge.reserve(1 << 60)
    assert charge.held_bytes == 1 << 60
    charge.refund()
    assert charge.held_bytes == 0


@pytest.mark.timeout(60)
def test_threads_do_not_overdraw() -> None:
    threads, budget = 8, DecodedBudget(1000)
    barrier = threading.Barrier(threads, timeout=30)

    def charge_all(_: int) -> int:
        barrier.wait()
        charged = 0
        for _attempt in range(1000):
            try:
                budget.charge(3)
            except LimitError:
                continue
            charged += 3
        return charged

    with ThreadPoolExecutor(threads) as pool:
        charged = sum(pool.map(charge_all, range(threads), timeout=30))
    assert charged == budget.used_bytes == 999


class ChargeMachine(RuleBasedStateMachine):
    """Charges, settles and refunds in any order: the budget is the sum of what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = DecodedBudget(100)
        self.charges: list[tuple[Charge, list[int]]] = []

    @rule(nbytes=st.integers(0, 60))
    def charge(self, nbytes: int) -> None:
        if self._held() + nbytes > 100:
            with pytest.raises(LimitError):
                Charge(self.budget, nbytes)
        else:
            self.charges.append((Charge(self.budget, nbytes), [nbytes, 0]))

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), nbytes=st.integers(0, 60))
    def settle(self, data: st.DataObject, nbytes: int) -> None:
        charge, state = data.draw(st.sampled_from(self.charges))
        if self._held() - state[0] + nbytes > 100:
            with pytest.raises(LimitError):
                charge.settle(nbytes)
        else:
            charge.settle(nbytes)
            state[:] = nbytes, 1

    @precondition(lambda self: self.charges)
    @rule(data=st.data())
    def refund(self, data: st.DataObject) -> None:
        charge, state = data.draw(st.sampled_from(self.charges))
        charge.refund()
        if not state[1]:
            state[0] = 0

    def _held(self) -> int:
        return sum(state[0] for _, state in self.charges)

    @invariant()
    def the_budget_is_what_is_held(self) -> None:
        assert self.budget.used_bytes == self._held() <= 100


TestCharges = pytest.mark.timeout(120)(ChargeMachine.TestCase)


def test_what_is_held_is_given_back_on_failure() -> None:
    budget = DownloadBudget(10)
    with Charge(budget, 4):
        assert budget.used_bytes == 4
    with pytest.raises(KeyboardInterrupt), Charge(budget, 6):
        raise KeyboardInterrupt
    assert budget.used_bytes == 4
    with pytest.raises(PayloadTooLargeError), Charge(budget, 7):
        raise AssertionError("not reached")
    assert budget.used_bytes == 4
