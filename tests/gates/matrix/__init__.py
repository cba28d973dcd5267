"""The fault matrix: the demo's release broken in many ways, and the gate that stops each."""
