"""Provenance and reports -> marker regions -> README.md."""
