"""The parts of `train.py`; `run.py` says in which order they work."""
