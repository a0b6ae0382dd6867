"""The code environment under RAGEN 2026's name and with its configuration."""
