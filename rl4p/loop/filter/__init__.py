"""Filters of graded groups: which of them are worth a place in the batch."""
