"""Benchmarks of latensor: `python -m benchmarks list` and `python -m benchmarks run NAME`.

One module reproduces one figure or table of a paper, or one comparison of speed. Its docstring states the claim; its
`run(options)` returns a `Report`, which says whether the claim held. Speed is a ratio: both sides in one process, warm.
"""
