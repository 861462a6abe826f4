"""Call ids as an API takes them: a conversation may hold ids that another provider made (cases 46, 55, 56)."""

import re

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")


class CallIds:
    """Renames the ids of one request, the same way every time: `longest` characters of letters, digits, `_` and `-`.

    What differed before differs afterwards, and a longer conversation keeps the names of a shorter one.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._sent: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, given: str, *, keep: bool = False) -> str:
        """The id to send for `given`. `keep` leaves it as it is: the model that is asked made it."""
        sent = self._sent.get(given)
        if sent is None:
            sent = self._sent[given] = self._unused(given if keep else _REFUSED.sub("_", given)[: self._longest])
            self._taken.add(sent)
        return sent

    def _unused(self, wanted: str) -> str:
        found, number = wanted, 1
        while not found or found in self._taken:
            suffix = f"_{number}"
            found, number = f"{(wanted or 'call')[: self._longest - len(suffix)]}{suffix}", number + 1
        return found
