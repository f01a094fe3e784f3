"""Benchmarks of the wire core: `python -m benchmarks` for the table of ratios, `pytest benchmarks` for timings."""
