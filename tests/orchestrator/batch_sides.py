"""The two sides of a socket as processes that can be killed: `batch_sides.py send|train DIRECTORY ADDRESS STEPS`.

The sender sends what was not sent yet. The trainer writes each step that it has trained into its book, which is its
checkpoint, says so, then acks; it begins after the last step in the book.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

from orchestrator.call_trees import chat
from rollwright.orchestrator import Batch, samples_of
from rollwright.orchestrator.transports import BatchReceiver, Window
from rollwright.orchestrator.transports.files import last_step
from rollwright.orchestrator.transports.zmq import ZmqSender

BOOK = "book.txt"


def batch_of(step: int) -> Batch:
    """Of several chunks, and not like any other."""
    return Batch.of(step, [sample for n in range(3) for sample in samples_of(chat(2 + step, attempt=step + n))])


def digest(batch: Batch) -> str:
    columns = [sample.ids.tobytes() + sample.logprobs.tobytes() for sample in batch.samples]
    return hashlib.sha256(b"".join(columns)).hexdigest()[:16]


async def send(directory: Path, address: str, steps: int) -> None:
    sender = ZmqSender(directory, address, window=Window(batches=4), sync=False)
    for step in range(last_step(directory) + 1, steps + 1):
        await sender.send(batch_of(step))
        await sender.prune(step)
    while sender.acked < steps:
        await asyncio.sleep(0.01)
    await sender.close()


def train(directory: Path, address: str, steps: int) -> None:
    book = directory / BOOK
    trained = len(book.read_text().splitlines()) if book.exists() else 0
    receiver = BatchReceiver(address, first_step=trained + 1, key=(directory / "trainer.key").read_text())
    with open(book, "a", buffering=1) as page:
        for _ in range(trained, steps):
            batch = receiver.receive(timeout_s=60)
            page.write(f"{batch.step} {digest(batch)}\n")
            # Whoever kills us is told of the moment between the book and the ack.
            print(batch.step, flush=True)
            receiver.ack(timeout_s=60)
    # A trainer that was killed between its last line and its ack has one to catch up on. Any other has acked, and the
    # sender may be gone by now.
    if trained == steps:
        receiver.ack(steps, timeout_s=60)
    receiver.close()


def main() -> None:
    verb, directory, address, steps = sys.argv[1:]
    print("started", flush=True)
    if verb == "send":
        asyncio.run(send(Path(directory), address, int(steps)))
    else:
        train(Path(directory), address, int(steps))


if __name__ == "__main__":
    main()
