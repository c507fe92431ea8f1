"""The exceptions that kgen raises on purpose; every one derives from :class:`KgenError`."""

from __future__ import annotations


class KgenError(Exception):
    """Base of all errors that kgen raises on purpose."""


class ConfigError(KgenError, ValueError):
    """A configuration, option or setting that is not allowed.

    Parameters
    ----------
    field
        The field, option or setting at fault, as the user writes it.
    value
        What was received.
    allowed
        What is allowed, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: got {value!r}; {allowed}")
        self.field, self.value, self.allowed = field, value, allowed

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


class MissingKernelError(KgenError):
    """A kernel that is in no package and no cache, where compiling is forbidden (``KGEN_JIT``)."""


class PlanError(ConfigError):
    """A configuration that does not fit the target (shared memory, cluster size, features)."""


class TargetError(ConfigError):
    """A target that kgen or NVRTC does not have."""


class RenderError(KgenError):
    """A template that failed to render: names the template and its line."""


class MissingHeaderError(RenderError):
    """A source that includes a header which kgen does not have."""


class CompileError(KgenError):
    """NVRTC refused the source: carries the log, the options and a numbered excerpt."""


class MissingCompilerError(CompileError):
    """NVRTC is not installed, or cannot be loaded."""


class CacheWarning(UserWarning):
    """The cache could not be used as asked; the kernel is returned all the same."""


class ArgumentError(KgenError, ValueError):
    """A launch argument of the wrong dtype, shape, stride, alignment, device or range."""


class DeviceError(KgenError, RuntimeError):
    """The GPU or its driver cannot run this kernel, or there is none."""


class DriverError(KgenError, RuntimeError):
    """A CUDA driver call failed: names the call, the error code and its meaning."""


class EmulationError(KgenError, RuntimeError):
    """A kernel run on the CPU did what the hardware does not promise: the report says where."""
