"""Household tasks in text: ALFWorld's official games if available, else tasks generated on its floor plans."""
