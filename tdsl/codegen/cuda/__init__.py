"""Kernels of NVIDIA GPUs: loops -> TIR -> text (by TVM) -> cubin (by NVRTC) -> launch (by the driver)."""
