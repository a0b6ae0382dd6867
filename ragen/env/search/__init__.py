"""Answer questions from the passages that a search engine finds."""
