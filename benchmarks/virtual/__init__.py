"""A virtual cluster: the broker's real books and slots, a clock that jumps, and costs that were measured elsewhere."""
