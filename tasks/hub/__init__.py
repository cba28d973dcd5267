"""Fetch the source, publish the release."""
