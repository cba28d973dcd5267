"""What `problems.py` writes: texts of each kind, their generator, and the rows of files."""
