"""Lanes: slots for long-lived workers of any kind, and the transport of batches to them and back."""
