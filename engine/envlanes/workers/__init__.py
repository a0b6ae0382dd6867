"""Workers of any kind, and the transport of batches to them and back."""
