"""The embedded engine: serves a release checkpoint where no SGLang can run, and says what it did.

`python -m tasks.serve.reference --checkpoint DIR --port P` answers over HTTP like SGLang. Weights
are decoded from the very files that will be published; K and V pass through FP8 with the
checkpoint's scales; decoding drafts with the MTP head and verifies with the main model.

Arithmetic is float64 by default. Greedy text must depend neither on batching nor on speculation,
and rounding K and V to FP8 and choosing experts turn the smallest difference between two orders of
summation into a large one: in float64 those differences are some 1e-15 and meet no boundary.
"""
