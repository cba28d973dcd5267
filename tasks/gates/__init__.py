"""Measure, then judge: audit, smoke, gsm8k, acceptance."""
