"""Source -> NVFP4 checkpoint, with NVIDIA ModelOpt."""
