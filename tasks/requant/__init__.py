"""The draft head that the export loses, put back: NVFP4 or BF16."""
