"""The parts of a measurement around the interceptor, each in a process of its own: worker, programs, engine."""
