"""CUDA backend: loop IR -> TIR -> CUDA C++ (by TVM) -> cubin (by NVRTC or nvcc) -> launch (by the driver)."""
