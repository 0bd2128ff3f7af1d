"""How much each client has been sent and has not read yet, which lies in the broker's memory; or that its caller has
not taken yet, which lies in the client's."""

from __future__ import annotations

from collections import Counter


class Unread:
    """Bytes, by client. A client tells how much it has read, or its caller taken, of all that it was ever sent."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._sent: Counter[bytes] = Counter()
        self._read: Counter[bytes] = Counter()
        self._bounds: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self._sent.total() - self._read.total()

    def bind(self, client: bytes, bound: int) -> None:
        """A client takes no more than it says itself; 0 says nothing."""
        self._bounds[client] = min(bound, self._bound) if bound > 0 else self._bound

    def sent(self, client: bytes, size: int) -> bool:
        """Whether it has too much now."""
        self._sent[client] += size
        return self._sent[client] - self._read[client] > self._bounds.get(client, self._bound)

    def read(self, client: bytes, total: int) -> bool:
        """Whether it has caught up, which is less than half of the bound: at the bound itself it would begin and stop
        with every answer. What a client claims beyond what it was sent is not believed."""
        self._read[client] = min(max(total, self._read[client]), self._sent[client])
        return self._sent[client] - self._read[client] <= self._bounds.get(client, self._bound) // 2

    def forget(self, client: bytes) -> None:
        self._sent.pop(client, None)
        self._read.pop(client, None)
        self._bounds.pop(client, None)
