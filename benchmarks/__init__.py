"""One file, one question, one line of answer. `python -m benchmarks.NAME --json` prints it for machines."""
