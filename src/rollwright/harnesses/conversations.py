"""Conversations: branches of a trace, each held by its tip."""

from __future__ import annotations

from collections.abc import Sequence

from rollwright.dialects.steps import Steps, at_once
from rollwright.traces import LiveTrace
from rollwright.wire import Message

_AT_ONCE = 4096
"""Messages that are put on record in one step."""
MAX_HEADS = 8
"""Conversations whose continuation is found without a search: a program's own, and those of its sub-agents."""


class Conversation:
    """One branch of the tree. Adding to it costs what is added."""

    def __init__(self, trace: LiveTrace, opening: Sequence[Message]) -> None:
        self._trace = trace
        self.messages = tuple(opening)
        self.tip = trace.extend(-1, opening)

    def say(self, *messages: Message) -> None:
        """Add what somebody other than the model said."""
        self.tip = self._trace.extend(self.tip, messages)
        self.messages += messages

    def branch(self) -> Conversation:
        """Another conversation that begins as this one stands now."""
        twin = Conversation(self._trace, ())
        twin.tip, twin.messages = self.tip, self.messages
        return twin

    def answered(self, tip: int, message: Message) -> None:
        self.tip = tip
        self.messages += (message,)


class Heads:
    """The newest conversations of a rollout, by which a whole history finds its branch.

    Nearly always a program goes on where it left off. Comparing with that conversation is one pass over pointers where
    the messages are the same objects, and ends at the first difference; walking the tree hashes each message.
    """

    def __init__(self, trace: LiveTrace) -> None:
        self._trace = trace
        self._newest: list[Conversation] = []

    def resume(self, messages: tuple[Message, ...]) -> Conversation:
        """The conversation that continues the longest recorded prefix of `messages`."""
        return at_once(self.steps_to_resume(messages))

    def steps_to_resume(self, messages: tuple[Message, ...]) -> Steps[Conversation]:
        """The same, in steps where there is much that is new. What others put on record in between is no matter: each
        message is looked for below the one before it."""
        conversation = Conversation(self._trace, ())
        tip, covered = yield from self._match(messages)
        for first in range(covered, len(messages), _AT_ONCE):
            if first > covered:
                yield
            tip = self._trace.extend(tip, messages[first : first + _AT_ONCE])
        conversation.tip, conversation.messages = tip, messages
        return conversation

    def remember(self, conversation: Conversation) -> None:
        """An answer came to this conversation. The one that it continues is not needed any more."""
        before = conversation.messages[:-1]
        self._newest = [head for head in self._newest if not _begins(before, head.messages)]
        self._newest.append(conversation)
        del self._newest[:-MAX_HEADS]

    def _match(self, messages: tuple[Message, ...]) -> Steps[tuple[int, int]]:
        fitting = [head for head in reversed(self._newest) if _begins(messages, head.messages)]
        if not fitting:
            return (yield from self._walk(messages))
        # A conversation that began with the same words later on is a shorter match, and would lose what came since.
        longest = max(fitting, key=lambda head: len(head.messages))
        return longest.tip, len(longest.messages)

    def _walk(self, messages: tuple[Message, ...]) -> Steps[tuple[int, int]]:
        nodes, covered = self._trace.follow([-1], messages[:_AT_ONCE])
        while covered and not covered % _AT_ONCE and covered < len(messages):
            yield
            nodes, more = self._trace.follow(nodes, messages[covered : covered + _AT_ONCE])
            covered += more
            if not more:
                break
        return nodes[-1], covered


def _begins(whole: tuple[Message, ...], part: tuple[Message, ...]) -> bool:
    return len(part) <= len(whole) and whole[: len(part)] == part
