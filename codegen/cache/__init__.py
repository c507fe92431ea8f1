"""What is built already: the user's cache, read-only ones, and installed packages."""
