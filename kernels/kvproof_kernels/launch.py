"""Start a kernel on a GPU, on a stream of the caller's, with raw pointers.

Two routes. NVRTC: kernels are compiled at their first use and loaded by cuda-core; they are started by the
driver's own call, because cuda.core.launch takes no structs by value and every kernel here has exactly one,
its parameters. nvcc: a library behind the C interface of entry*.cu, for machines with a CUDA toolkit and
without those packages.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvproof_kernels import nvcc, nvrtc

SHARED_WITHOUT_ASKING = 48 << 10  # bytes; a kernel that takes more has to say so once
PARAM_INFO = 12040  # the CUDA version whose driver tells the size of a kernel's parameters
MAX_GRID = (2**31 - 1, 65535, 65535)


class LaunchFailed(RuntimeError):
    """The driver refused; the message has the kernel and the error."""


@dataclass(frozen=True)
class Launch:
    """One kernel with its grid.

    header and expression: as for nvrtc.compile_kernel. threads: a block's. shared: dynamic bytes a block.
    """

    header: str
    expression: str
    grid: tuple[int, int, int]
    threads: int
    shared: int = 0

    def __post_init__(self) -> None:
        for axis, size, most in zip("xyz", self.grid, MAX_GRID, strict=True):
            if size > most:
                raise ValueError(f"grid.{axis} of {self.expression} would be {size}; CUDA allows {most}")


@dataclass(frozen=True)
class Call:
    """A kernel call for either route.

    launches: what NVRTC's route starts, one after another, each with `params`. entry, function, defines: the
    source for nvcc, the C function in it that starts the same, and the macros that choose the instantiation.
    """

    launches: tuple[Launch, ...]
    params: ctypes.Structure
    entry: str
    function: str
    defines: Mapping[str, str | int] = field(default_factory=dict)


class Gpu(Protocol):
    """A device and one of the routes to it. arch: such as "sm_90". sms: how many multiprocessors it has."""

    arch: str
    sms: int

    def start(self, call: Call, stream: int, capturing: bool) -> None:
        """Put a call on `stream`, a cudaStream_t as an integer; returns before it runs.

        capturing: the stream records a graph. Loading a kernel is not allowed then, so it must have run
        once before.

        Raises:
            LaunchFailed: with the driver's error.
            nvrtc.CompileFailed: with the compiler's message.
        """
        ...


@functools.cache
def gpu(index: int) -> Gpu:
    """The device of this number, as torch counts them, by NVRTC if that is installed, else by nvcc.

    Raises:
        nvrtc.NoNvrtc: neither is there, or the driver is too old for one and the other is not there.
        LaunchFailed: there is no driver.
    """
    try:
        _check_driver()
    except nvrtc.NoNvrtc as missing:
        try:
            nvcc.version()
        except nvcc.NoNvcc as too:
            raise nvrtc.NoNvrtc(f"{missing}. Nor is there the other route: {too}") from None
        return NvccGpu(index)
    return NvrtcGpu(index)


def _check_driver() -> None:
    """What NVRTC compiles, a driver of an older CUDA does not load."""
    ours = nvrtc.version()
    from cuda.bindings import driver

    try:
        number = int(_checked("cuDriverGetVersion", driver.cuDriverGetVersion()))
    except RuntimeError as missing:
        raise LaunchFailed(f"no NVIDIA driver: {missing}") from missing
    if number // 1000 < int(ours.split(".")[0]):
        served = f"{number // 1000}.{number % 1000 // 10}"
        raise nvrtc.NoNvrtc(
            f"NVRTC is of CUDA {ours}, the driver serves {served}: update it, or install cuda-core[cu12]"
        )


class _Loaded:
    """What a device has loaded: made once, never while a graph is captured."""

    def __init__(self) -> None:
        self._items: dict[object, Any] = {}
        self._lock = threading.Lock()

    def get(self, key: object, name: str, capturing: bool, make: Any) -> Any:
        item = self._items.get(key)
        if item is not None:
            return item
        if capturing:
            raise LaunchFailed(
                f"{name} is not loaded yet, which a graph capture does not allow: run the same call once "
                "before the capture"
            )
        with self._lock:
            if key not in self._items:
                self._items[key] = make()
            return self._items[key]


class NvrtcGpu:
    """A device whose kernels NVRTC compiles, one at a time."""

    def __init__(self, index: int) -> None:
        from cuda.bindings import driver
        from cuda.core import Device

        self._device = Device(index)
        self._device.set_current()
        self._ordinal = _checked("cuDeviceGet", driver.cuDeviceGet(index))
        self.arch = f"sm_{self._device.arch}"
        self.sms = int(self._device.properties.multiprocessor_count)
        self._kernels = _Loaded()

    def start(self, call: Call, stream: int, capturing: bool) -> None:
        from cuda.bindings import driver

        self._device.set_current()  # a new thread has no device yet
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(call.params))  # the driver copies what it points to
        for launch in call.launches:
            if 0 in launch.grid:  # nothing to do, and CUDA refuses such a grid
                continue
            key = (launch.header, launch.expression)
            make = functools.partial(self._load, launch, call.params)
            kernel = self._kernels.get(key, launch.expression, capturing, make)
            _checked(
                launch.expression,
                driver.cuLaunchKernel(
                    driver.CUfunction(int(kernel.handle)),  # the driver takes a CUkernel in its place
                    *launch.grid,
                    launch.threads,
                    1,
                    1,
                    launch.shared,
                    driver.CUstream(stream),
                    ctypes.addressof(pointers),
                    0,
                ),
            )

    def _load(self, launch: Launch, params: ctypes.Structure) -> Any:
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        cubin = nvrtc.compile_kernel(launch.header, launch.expression, self.arch)
        code = ObjectCode.from_cubin(cubin.path.read_bytes(), name=launch.expression)
        kernel = code.get_kernel(cubin.symbol)
        if int(_checked("cuDriverGetVersion", driver.cuDriverGetVersion())) >= PARAM_INFO:
            error, _, told = driver.cuKernelGetParamInfo(driver.CUkernel(int(kernel.handle)), 0)
            _checked(launch.expression, (error,))
            _same_size(launch.expression, int(told), params)
        if launch.shared > SHARED_WITHOUT_ASKING:
            asked = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            handle = driver.CUkernel(int(kernel.handle))
            done = driver.cuKernelSetAttribute(asked, launch.shared, handle, self._ordinal)
            _checked(f"{launch.expression}, {launch.shared} bytes of shared memory", done)
        return kernel


class NvccGpu:
    """A device whose kernels nvcc compiles, a library for each instantiation."""

    def __init__(self, index: int) -> None:
        import torch

        about = torch.cuda.get_device_properties(index)
        self.arch = f"sm_{about.major}{about.minor}"
        self.sms = int(about.multi_processor_count)
        self._functions = _Loaded()

    def start(self, call: Call, stream: int, capturing: bool) -> None:
        key = (call.entry, call.function, tuple(call.defines.items()))
        make = functools.partial(self._load, call)
        function = self._functions.get(key, call.function, capturing, make)
        error = function(ctypes.byref(call.params), stream)
        if error:
            raise LaunchFailed(f"{call.function} of {call.entry}: CUDA error {error}")

    def _load(self, call: Call) -> Any:
        library = ctypes.CDLL(str(nvcc.build(call.entry, self.arch, call.defines)))
        function = getattr(library, call.function)
        _same_size(call.function, getattr(library, f"{call.function}_bytes")(), call.params)
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
        return function


def _same_size(what: str, told: int, params: ctypes.Structure) -> None:
    """Both sides of a call describe the same struct, or nothing is started.

    Raises:
        RuntimeError: the sizes differ.
    """
    if told != ctypes.sizeof(params):
        raise RuntimeError(
            f"{what} takes {told} bytes of parameters, {type(params).__name__} has {ctypes.sizeof(params)}"
        )


def _checked(what: str, result: tuple[Any, ...]) -> Any:
    """The value beside the status that a function of the driver returns."""
    if int(result[0]):
        raise LaunchFailed(f"{what}: {result[0].name}")
    return result[1] if len(result) > 1 else None
