"""The simulator: machines without I/O run in virtual time, with faults drawn from a seed. Same seed, same trace.

`python -m tests.sim --seed N` replays one run and prints its story; `--seeds 100 --first 5000` runs many.
"""
