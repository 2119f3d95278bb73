"""Sources, which select the next prompts."""
