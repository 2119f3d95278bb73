"""Small faults in the code, each of which a test must detect."""
