"""The commands that sample, grade and show responses, and the records they share."""
