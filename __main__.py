"""``python -m kgen``: the ``kgen`` command, also where its script is not on the path."""

from .cli import main

main()
