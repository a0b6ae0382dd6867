"""Lanes: seats for long-lived workers of any kind, and how batches travel to them and back."""
