"""What benchmarks/step.py needs around the orchestrator, and the plain implementation that it is compared with."""
