"""Draft heads side by side, and the sweep over draft steps, measured in turns on one machine."""
