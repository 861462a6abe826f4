"""Assertions with readable messages: pytest rewrites asserts of test modules only."""

from types import TracebackType
from typing import Generic, TypeVar

E = TypeVar("E", bound=BaseException)


def equal(actual: object, expected: object, about: object = None) -> None:
    """Both are equal.

    Raises:
        AssertionError: showing both.
    """
    if actual != expected:
        prefix = "" if about is None else f"{about}: "
        got, wanted = repr(actual), repr(expected)
        differs = next((at for at, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), 0)
        start = max(0, differs - 120)  # long answers are shown from shortly before they part
        raise AssertionError(
            f"{prefix}got      ...{got[start : start + 2000]}\nexpected ...{wanted[start : start + 2000]}"
        )


def true(value: object, claim: str) -> None:
    """The claim holds.

    Raises:
        AssertionError: naming it.
    """
    if not value:
        raise AssertionError(f"not so: {claim}")


class raises(Generic[E]):  # noqa: N801 - reads as in pytest
    """The block raises exactly this error, or one derived from it; `error` is it afterwards."""

    error: E

    def __init__(self, kind: type[E]) -> None:
        self._kind = kind

    def __enter__(self) -> "raises[E]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            raise AssertionError(f"{self._kind.__name__} was not raised")
        if not isinstance(error, self._kind):
            return False
        self.error = error
        return True
