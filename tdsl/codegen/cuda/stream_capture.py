"""CUDA graphs: launches captured from a stream once, which the driver then starts as one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tdsl.codegen.cuda.driver import Device, Handle
from tdsl.codegen.cuda.launcher import LaunchConfig

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may do what they like meanwhile


class _NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((f"{kind}_{axis}", ctypes.c_uint) for kind in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class CapturedGraph:
    """Launches as an executable CUDA graph of a device.

    `launch` launches all kernels on the stream that it is given, and calls its second argument after each;
    nothing runs before `start`. An error of a launch ends the capture and is raised. `name` is for errors.
    """

    def __init__(self, device: Device, name: str, launch: Callable[[int, Callable[[], None]], None]) -> None:
        self.device, self.name = device, name
        self._graph, self._executable = Handle(), Handle()
        self._nodes: list[int | None] = []
        driver, stream = device.driver, Handle()
        # the stream of the caller may be the legacy one, from which nothing is captured
        driver.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        try:
            driver.call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
            try:
                launch(stream.value or 0, lambda: self._nodes.append(self._last_node(stream)))
            except BaseException:  # also after an interrupt the capture has to end before the stream does
                driver.library.cuStreamEndCapture(stream, ctypes.byref(self._graph))
                raise
            driver.call("cuStreamEndCapture", stream, ctypes.byref(self._graph))
            doing = f"making a CUDA graph of {name!r}"
            place, flags = ctypes.byref(self._executable), ctypes.c_uint64(0)
            driver.call("cuGraphInstantiateWithFlags", place, self._graph, flags, doing=doing)
        finally:
            driver.library.cuStreamDestroy_v2(stream)
        self._launch = driver.library.cuGraphLaunch

    def __del__(self) -> None:
        # errors are ignored: the context may be destroyed; a graph that runs is destroyed when it ends
        if self._executable:
            self.device.driver.library.cuGraphExecDestroy(self._executable)
        if self._graph:
            self.device.driver.library.cuGraphDestroy(self._graph)

    def _last_node(self, stream: Handle) -> int | None:
        """The node of the last launch on a stream that is captured; None if the driver does not tell."""
        status, identity, graph = ctypes.c_int(), ctypes.c_uint64(), Handle()
        nodes, count = ctypes.POINTER(Handle)(), ctypes.c_size_t()
        places = map(ctypes.byref, (status, identity, graph, nodes, count))
        failed = self.device.driver.library.cuStreamGetCaptureInfo_v2(stream, *places)
        return None if failed or count.value != 1 else nodes[0]

    def update(self, number: int, config: LaunchConfig, function: int | None, arguments: int) -> bool:
        """Replace the arguments of a launch, by number; False if the driver cannot."""
        node = self._nodes[number]
        if node is None:
            return False
        extents = (getattr(config, f"{kind}_{axis}") for kind in ("grid", "block") for axis in "xyz")
        params = _NodeParams(function, *extents, config.shared, arguments)
        library = self.device.driver.library
        return not library.cuGraphExecKernelNodeSetParams_v2(
            self._executable, Handle(node), ctypes.byref(params)
        )

    def start(self, stream: int) -> None:
        """Start all launches on a stream; TargetError if the driver refuses."""
        arguments = self._executable, Handle(stream)
        status = self._launch(*arguments)
        if status:
            self.device.retry(status, self._launch, arguments, f"the launch of graph {self.name!r}")
