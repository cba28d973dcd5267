"""Start an engine on a checkpoint, or find one, and talk to it."""
