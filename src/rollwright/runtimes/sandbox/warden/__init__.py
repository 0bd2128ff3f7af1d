"""The process that makes boxes and starts programs in them, one per owner, with the standard library alone.

It is a process of its own for three reasons: entering a user namespace needs a process with one thread; a fork of a
small process costs a third of a fork of a large one; and when the owner is killed it is there to end what it began.
"""
