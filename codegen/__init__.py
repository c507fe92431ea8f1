"""From a configuration to a launched kernel: a room a stage (CONTRIBUTING.md lists them)."""
