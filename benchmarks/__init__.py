"""The evidence.

One file per claim, ours and the baseline side by side in one run. `python -m benchmarks --list`.
"""
