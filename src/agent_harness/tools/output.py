"""What is kept of a command's output: its head and its tail, however much there was."""

from collections import deque

from .text import cut_end, cut_start, decode


class BoundedOutput:
    """Takes bytes of any amount, holds at most about twice `limit` of them."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes: half for the beginning, half for the end."""
        self.total = 0  # bytes that came
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.total += len(data)
        # Up to three bytes more than half, so that a code point on the border is whole on one side.
        room = self._half + 3 - len(self._head)
        if room > 0:
            self._head += data[:room]
        self._tail.append(data[-(self._half + 3) :])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) >= self._half + 3:
            self._tail_size -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether `text` leaves something out."""
        return self.total > 2 * self._half

    def text(self) -> str:
        """The output, or its head and tail with the number of bytes left out between them."""
        joined = b"".join(self._tail)
        if not self.truncated:
            overlap = len(self._head) + len(joined) - self.total
            return decode(bytes(self._head) + joined[overlap:] if overlap >= 0 else bytes(self._head))
        head = cut_end(bytes(self._head), self._half)
        tail = cut_start(joined, self._half)
        left_out = self.total - len(head) - len(tail)
        return f"{decode(head)}\n[... {left_out} bytes left out ...]\n{decode(tail)}"
