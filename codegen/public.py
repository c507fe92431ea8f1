"""The public names of ``kgen``, but for the families of the schema: which module each is in."""

from __future__ import annotations

PLACES: dict[str, str] = {
    "Dispatch": "dispatch",
    "value_bmm": "api",
    "warmup": "api",
    "Emulation": "emulator.kernel",
    "emulate": "emulator.kernel",
    "Kernel": "runtime.kernel",
    "Prepared": "runtime.kernel",
    "ArgumentError": "errors",
    "CacheWarning": "errors",
    "CompileError": "errors",
    "ConfigError": "errors",
    "DeviceError": "errors",
    "DriverError": "errors",
    "EmulationError": "errors",
    "KgenError": "errors",
    "MissingCompilerError": "errors",
    "MissingHeaderError": "errors",
    "MissingKernelError": "errors",
    "TargetError": "errors",
    "PlanError": "errors",
    "RenderError": "errors",
}
MODULES: tuple[str, ...] = ("dcp",)  # modules that are public whole
