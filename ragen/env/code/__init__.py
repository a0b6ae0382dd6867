"""Write Python programs; they are run against tests in a sandbox."""
