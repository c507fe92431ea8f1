"""From a configuration to a launched kernel: one noun a module, imports only downward."""
