"""Tells what there is and why; changes nothing."""
