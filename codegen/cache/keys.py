"""What decides a cubin's bytes, as labelled fields, and the keys that are made of them.

No path, time or name of a configuration is among them: an entry is right wherever it came from, and
serves every configuration whose kernel has the same source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..compiler import nvrtc
from ..compiler.render import Source, render
from ..plan import Plan, plan
from ..schema import VERSION

if TYPE_CHECKING:
    from ..schema import Config
    from ..targets import Target

FORMAT = 2  # of an entry's files


@dataclass(frozen=True)
class Request:
    """A kernel that is asked for: its plan and source, and what each is known by, made once."""

    plan: Plan
    source: Source

    @classmethod
    def of(cls, config: Config, arch: str | Target) -> Request:
        """The request for ``config`` on ``arch``; ConfigError or PlanError where it cannot be."""
        planned = plan(config, arch)
        return cls(planned, render(planned))

    @property
    def arch(self) -> str:
        return self.plan.target.name

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.plan.config.slug} for {self.arch}"

    @cached_property
    def content(self) -> Mapping[str, str]:
        """The SHA-256 of each field but the compiler's build, so that NVRTC is not asked.

        Kernels include none but kgen's headers, which are all in the source; those that NVRTC
        brings along are told by its build.
        """
        fields = {
            "format": str(FORMAT),
            "schema": str(VERSION),
            "text": self.source.text,
            **{f"header {name}": text for name, text in self.source.headers},
            "options": "".join(f"{len(option)}:{option}" for option in nvrtc.options(self.arch)),
            "arch": self.arch,
        }
        return {label: hash_of(text) for label, text in fields.items()}

    @cached_property
    def code(self) -> str:
        """The key of :attr:`content`: which machine code is meant, whoever compiles it."""
        return combine(self.content)

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """:attr:`content` and the NVRTC build of this process; CompileError where there is none."""
        return {**self.content, "nvrtc": hash_of(nvrtc.nvrtc_build())}

    @cached_property
    def key(self) -> str:
        """The key of :attr:`fields`, under which a cache holds the cubin."""
        return combine(self.fields)


def combine(fields: Mapping[str, str]) -> str:
    """The key that ``fields`` make, each written with its label and the label's length."""
    return hash_of("".join(f"{len(label)}:{label}:{fields[label]}\n" for label in sorted(fields)))


def is_key(name: str) -> bool:
    """Whether ``name`` looks like a key."""
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def hash_of(text: str) -> str:
    """The SHA-256 of ``text`` as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()
