"""The critic: estimates of the return, for advantages that need `values`."""
