# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""How a zygote's memory is laid out for its children: what a child writes to, it has to copy, page by page.

So nothing is left for children to free, what they make lies close together, and whatever they only read is in huge
pages, which are forked in one step each. None of it is needed for a right answer.
"""

import ctypes
import gc

_libc = ctypes.CDLL(None, use_errno=True)
_HUGE = 2 << 20
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
# Python's own allocator: blocks of one size share a pool, up to a size.
_POOL, _POOL_HEAD, _STEP, _LARGEST = 16 << 10, 48, 16, 512
_BYTES_HEAD = 33
_MOST = 50_000
_fillers = []


def settle(rehearse):
    """After something was loaded: leave nothing that each child would have to find out or to tidy up."""
    # Frozen, no later collection touches the pages that all children share. One that has nothing to look at empties
    # the lists of freed objects that the interpreter keeps: else each child does so at its end, all over the heap.
    gc.freeze()
    rehearse()
    gc.collect()
    for size in range(_STEP, _LARGEST + 1, _STEP):
        _fill_holes(size)
    gc.freeze()


def _fill_holes(size):
    """Take the free blocks of a size that lie between others, until a whole pool of them comes."""
    made, room, run, last = [], (_POOL - _POOL_HEAD) // size, 0, 0
    while run < room - _STEP and len(made) < _MOST:
        made.append(_block(size))
        pool = id(made[-1]) // _POOL
        run = run + 1 if pool == last else 1
        last = pool
    del made[-run:]
    _fillers.append(made)


def _block(size):
    if size == 16:
        return object()
    return complex(1, size) if size == 32 else bytes(size - _BYTES_HEAD)


def collapse():
    """Ask for huge pages under the heap. A kernel that has none says no, and nothing else changes."""
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        words = line.split(None, 5)
        first, last = (int(end, 16) for end in words[0].split("-"))
        first, last = -(-first // _HUGE) * _HUGE, last // _HUGE * _HUGE
        anonymous = words[4] == "0" and (len(words) < 6 or words[5] == "[heap]")
        if anonymous and words[1].startswith("rw") and last > first:
            for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
                _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)
