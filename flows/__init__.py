"""What happens, in order."""
