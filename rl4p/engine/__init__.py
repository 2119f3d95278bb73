"""The decoding engine: sequences in slots, their cache, and the programs that extend both."""
