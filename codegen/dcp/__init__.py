"""Decode context parallelism: the mailboxes that ranks write and poll. Public as ``kgen.dcp``."""

from .layout import Shape
from .mailboxes import Mailboxes
from .watchdog import Overdue

__all__ = ["Mailboxes", "Overdue", "Shape"]
