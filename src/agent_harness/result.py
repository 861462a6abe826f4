"""Results: an expected refusal is a value, so that a caller can match on it (decisions section 2)."""

from dataclasses import dataclass
from typing import Generic, Literal, NoReturn, Protocol, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True, bound="Rejection")


class Rejection(Protocol):
    """What an `Err` carries: a frozen dataclass with a literal tag and a sentence."""

    @property
    def message(self) -> str:
        """What was refused, and the way out."""
        ...


class RejectedError(Exception):
    """Raised by `Err.unwrap()`: for scripts that treat a refusal as a failure."""

    def __init__(self, error: Rejection) -> None:
        super().__init__(f"{type(error).__name__}: {error.message}")
        self.error = error


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """The call did what it was asked to."""

    value: T_co

    @property
    def ok(self) -> Literal[True]:
        """Always True."""
        return True

    def unwrap(self) -> T_co:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Err(Generic[E_co]):
    """The call was refused; nothing was created or accepted."""

    error: E_co

    @property
    def ok(self) -> Literal[False]:
        """Always False."""
        return False

    def unwrap(self) -> NoReturn:
        """Raise.

        Raises:
            RejectedError: always, carrying the rejection.
        """
        raise RejectedError(self.error)


T = TypeVar("T")
E = TypeVar("E", bound=Rejection)
Result: TypeAlias = Ok[T] | Err[E]
"""The answer of a call that may be refused: match on `Ok` and `Err`, or `unwrap()` it."""
