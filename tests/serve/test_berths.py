"""The seat with the most room, against a look at all of them."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from rollwright.serve.berths import Berths


@dataclass(eq=False)
class Seat:
    capacity: int
    load: int = 0
    open: bool = True
    noted_room: int = -1
    held: dict = field(default_factory=dict)

    @property
    def room(self):
        return self.capacity - self.load


VERBS = ["add", "take", "give", "close", "open", "remove"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 9)), max_size=120)


@given(STEPS)
def test_it_finds_what_a_look_at_all_of_them_finds(steps):
    berths, seats = Berths(), []
    for step, number in steps:
        seat = seats[number % len(seats)] if seats else None
        if step == "add":
            seats.append(Seat(1 + number))
            berths.add(seats[-1])
        elif step == "take" and (chosen := berths.roomiest(1 + number)):
            assert chosen.open
            chosen.load += 1 + number
            chosen.held[len(chosen.held)] = number
        elif step == "give" and seat and seat.load:
            seat.load, seat.held = 0, {}
            berths.roomier(seat)
        elif step == "open" and seat:
            seat.open = True
            berths.roomier(seat)
        elif step in ("close", "remove") and seat:
            seat.open = False
            if step == "remove":
                seats.remove(seat)
                berths.remove(seat)
        rooms = [one.room for one in seats if one.open]
        for weight in (1, 4, 9):
            found = berths.roomiest(weight)
            fits = [room for room in rooms if room >= weight]
            empty = [one for one in seats if one.open and not one.held]
            assert (found is not None) == bool(fits or empty)
            assert not fits or found.room == max(rooms)


def test_old_beliefs_do_not_pile_up():
    berths, seats = Berths(), [Seat(64) for _ in range(3)]
    for seat in seats:
        berths.add(seat)
    for turn in range(10_000):
        seat = seats[turn % 3]
        seat.load = 4
        berths.roomiest(1)
        seat.load = 0
        berths.roomier(seat)
    assert len(berths._heap) <= 4 * 3 + 64
