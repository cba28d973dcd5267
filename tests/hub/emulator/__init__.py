"""A small Hub for tests: the endpoints that a publication needs, with the Hub's own refusals.

Written from what `huggingface_hub` 1.33 sends and reads; each endpoint names the client function
that calls it. The real Hub has not been tried.
"""
