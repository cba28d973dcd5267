"""A directory of safetensors: open, read, write; the only code that knows those files."""
